"""What a job promises, whatever happens to it: looked after at every message, and at the end."""

from __future__ import annotations

from typing import Any

from holdfast.cluster.core.controller import Recovery
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Message
from tests.cluster.core.model import Applied, BrokenPromise, Log
from tests.cluster.core.world import Cores, Ending, Process, World


class Promises(World):
    """A world in which promises are kept, or ``BrokenPromise`` says which is not."""

    PATIENCE = 30_000  # things that happen

    def __init__(self, seed: int, cores: Cores = Cores(), **traits: Any) -> None:  # noqa: B008 - frozen
        super().__init__(seed, cores, **traits)
        self.is_store_ever_full = False
        self.must_save = False  # orphans whom nothing keeps from a last save

    def _receive(self, sender: Member, receiver: Member, message: Message) -> None:
        process = self.processes.get(receiver)
        if process is None or process.shard is None or sender.role is not Role.WORKER:
            super()._receive(sender, receiver, message)
            return
        before = dict(process.shard.rows)
        super()._receive(sender, receiver, message)
        self._check_zombie(process, sender, before)

    def _check_place(self, core: Any) -> int:
        place = core.progress.place or 0
        if not self.traits.synchronous and place != core.progress.pushed:
            raise BrokenPromise(f"a worker goes on at place {place} after push {core.progress.pushed}")
        return int(place)

    def _check_zombie(self, process: Process, sender: Member, before: dict[str, Log]) -> None:
        view = process.core.view
        if view is not None and view.replaces(sender) and process.shard is not None and process.shard.rows != before:
            raise BrokenPromise(f"{process.member} applied a push of {sender}, which it knows to be dead")

    def _check_end(self) -> None:
        if not self.is_controller_alive:
            is_saved = self.last is not None and self.last[0] is not self.controller
            if self.must_save and not is_saved:
                raise BrokenPromise("orphans whom nothing kept from it did not save")
            return
        self._check_all_end()
        assert self.ended is not None
        if self.ended.problem:
            if self.traits.ending is not Ending.FAILURE and not self.is_store_ever_full:
                raise BrokenPromise(f"it ended without need: {self.ended.problem}")
        elif self.last is None:
            raise BrokenPromise("it ended without a checkpoint")
        else:
            self._check_data()
            self._check_checkpoint(self.last[1].save)

    def _check_all_end(self) -> None:
        view = self.controller.view
        for _ in range(self.PATIENCE):
            running = [each for each in self._running() if view.holds(each.member)]
            if all(each.core.is_orphan for each in running):
                return
            if self.starting:
                self._lead(self.controller, self.controller.up(self.starting.pop()))
            self._deliver()
        raise BrokenPromise(f"not everyone has ended: {self._state()}")

    def _check_data(self) -> None:
        places = {worker: self.progress[worker].place or 0 for worker in range(len(self.controller.view.workers))}
        if self.traits.ending is Ending.DATA and any(each < self.lengths[who] for who, each in places.items()):
            raise BrokenPromise(f"it ended at {places}, and the data have {self.lengths}")

    def _check_checkpoint(self, save: int) -> None:
        if self.reference is not None:
            self._check_model(save)
            return
        everything = {(who, n) for who, each in self.progress.items() for n in range(1, each.pushed + 1)}
        for index, storage in enumerate(self.storage):
            for row, saved in storage.checkpoints[save].rows.items():
                wanted = self._wanted(index, row, everything)
                if len(set(saved.log)) != len(saved.log) or not set(saved.log) <= wanted:
                    raise BrokenPromise(f"server {index} applied what it must not to {row}: {saved.log}")
                if missing := self._needed(index, row, wanted) - set(saved.log):
                    raise BrokenPromise(f"server {index} did not lose {missing} of {row}, and lacks it")
            if not self.ever[index] >= everything:
                raise BrokenPromise(f"nobody ever applied {everything - self.ever[index]} on server {index}")

    def _check_model(self, save: int) -> None:
        values = tuple(each.checkpoints[save].value for each in self.storage)
        if self.reference is not None and values != self.reference.values(self._last_step()):
            raise BrokenPromise("the model is not that of an undisturbed run")

    def _wanted(self, index: int, row: Any, everything: set[Applied]) -> set[Applied]:
        """Those pushes that concern a row."""
        return everything

    def _needed(self, index: int, row: Any, wanted: set[Applied]) -> set[Applied]:
        """Those of them that it cannot have lost with a server."""
        return wanted if self.traits.recovery is Recovery.FULL or index not in self.lost else set()
