"""A job of state machines on a network that is slow, cut and full of the dead, all of it from a seed.

Processes are killed, stopped and woken; views arrive at different times; frames get lost, and streams are as slow as
they like. The simulation stops at the first promise that is broken, and says which.
"""

from __future__ import annotations

from typing import Any

from holdfast.cluster.core.controller import Recovery
from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.core.messages import Failed, Message, Send
from tests.cluster.core.model import BrokenPromise, Log, gradient
from tests.cluster.core.world import MOST_WORKERS, Cores, Ending, Process, World


class Simulation(World):
    """One schedule."""

    PATIENCE = 30_000  # things that happen
    ORPHANS_PATIENCE = 100  # looks at the clock

    def __init__(self, seed: int, cores: Cores = Cores(), **traits: Any) -> None:  # noqa: B008 - frozen
        super().__init__(seed, cores, **traits)
        self.faults, self.saves, self.resizes = self.traits.faults, self.traits.saves, self.traits.resizes
        self.time_left = 0 if self.traits.ending is Ending.DATA else self.chance.randint(50, 1500)
        self.is_store_ever_full = False
        self.must_save = False  # orphans whom nothing keeps from a last save
        self.orphaned_for = 0

    def run(self) -> None:
        """To the end of the training, or to the first broken promise."""
        for _ in range(self.PATIENCE):
            if self.ended is not None or (not self.is_controller_alive and not self._running()):
                break
            self._happen()
        else:
            raise BrokenPromise(f"nothing moves any more: {self._state()}")
        self._check_end()

    def _happen(self) -> None:
        dice = self.chance.random()
        if self.time_left:
            self.time_left -= 1
            if self.time_left == 0:
                self._come_to_an_end()
        if not self.is_controller_alive and dice < 0.06:
            self._look_at_the_clock()
        elif self.faults and dice < 0.02:
            self.faults -= 1
            self._break_something()
        elif dice < 0.06 and (self.saves or self.resizes) and self.is_controller_alive:
            self._save_something()
        elif self.starting and dice < 0.10:
            member = self.starting.pop(self.chance.randrange(len(self.starting)))
            if self.is_controller_alive:
                self._lead(self.controller, self.controller.up(member))
        elif self.unheard and dice < 0.15:
            member = self.unheard.pop(self.chance.randrange(len(self.unheard)))
            if self.is_controller_alive:
                self._lead(self.controller, self.controller.died(member))
        elif dice < 0.18:
            self._wake()
        elif self.commits and dice < 0.24:
            self._commit()
        elif dice < 0.48:
            self._train()
        else:
            self._deliver()

    # ---- faults ----------------------------------------------------------------------------------------------------

    def _break_something(self) -> None:
        self.must_save = False
        faults = (self._kill, self._kill, self._stop, self._stop, self.network.cut, self._cut_off)
        self.chance.choice(faults)()

    def _kill(self) -> None:
        if running := self._running():
            self._end(self.chance.choice(running))

    def _stop(self) -> None:
        """It is stopped, or cannot be reached, and is given up for dead."""
        if running := self._running():
            process = self.chance.choice(running)
            process.stopped = True
            self.unheard.append(process.member)

    def _cut_off(self) -> None:
        """A server cannot reach the controller; if it is server 0, it believes that it is the heir."""
        if servers := [each for each in self._running(Role.SERVER) if not each.core.is_orphan]:
            process = self.chance.choice(servers)
            self.unheard.append(process.member)
            self._orphan(process)

    def _report_gap(self, sender: Member, receiver: Member) -> None:
        self.must_save = False
        super()._report_gap(sender, receiver)

    def _wake(self) -> None:
        if stopped := [each for each in self.processes.values() if each.alive and each.stopped]:
            self.chance.choice(stopped).stopped = False
        self.is_full = self.is_full and self.chance.random() < 0.9
        if self.is_controller_alive and self.heirs and self.chance.random() < 0.1:
            heir = self.chance.choice(list(self.heirs.values()))
            self._lead(heir, heir.end("nobody follows"))

    # ---- saves and ends --------------------------------------------------------------------------------------------

    def _save_something(self) -> None:
        dice = self.chance.random()
        if self.resizes and dice < 0.2:
            self.resizes -= 1
            self._lead(self.controller, self.controller.resize(self.chance.randint(1, MOST_WORKERS)))
        elif self.saves:
            self.saves -= 1
            if self.traits.tight and self.chance.random() < 0.3:
                self.is_full = self.is_store_ever_full = True
            self._lead(self.controller, self.controller.save() if dice < 0.6 else self.controller.save_priority())

    def _come_to_an_end(self) -> None:
        workers = [each for each in self._running(Role.WORKER) if self.controller.view.holds(each.member)]
        match self.traits.ending:
            case Ending.STOP:
                self._lead(self.controller, self.controller.stop())
            case Ending.FAILURE if workers:
                self.network.send(self.chance.choice(workers).member, [Send(CONTROLLER, Failed("it raised"))])
                self.time_left = 300  # the worker may die as well, or what it says is lost
            case Ending.ORPHANS:
                self.must_save = self._is_well()
                self.is_controller_alive = False
                self.network.lose_last_words(CONTROLLER)
                self.commits = [each for each in self.commits if each[0] is not self.controller]

    def _is_well(self) -> bool:
        """Whether everyone is at work, and knows it."""
        view = self.controller.view
        members = [self.processes[each] for each in view.members if each in self.processes]
        is_known = all(each.runs and each.core.view == view and not each.core.is_orphan for each in members)
        return self.controller.is_whole and is_known and not self.is_full

    def _look_at_the_clock(self) -> None:
        if parents := [each for each in self._running() if not each.core.is_orphan]:
            self._orphan(self.chance.choice(parents))
            return
        self.orphaned_for += 1
        if self.orphaned_for > self.ORPHANS_PATIENCE:
            for process in self._running():
                process.core.ended = True

    def _orphan(self, process: Process) -> None:
        member, core = process.member, process.core
        self.network.send(member, core.controller_lost())
        if member.role is Role.SERVER and member.index == 0 and not core.ended:
            heir = self.cores.heir(core.view, synchronous=self.traits.synchronous, last_save=core.last_save)
            self.heirs[member] = heir
            self._lead(heir, heir.stop())

    # ---- the training ----------------------------------------------------------------------------------------------

    def _train(self) -> None:
        workers = [each for each in self._running(Role.WORKER) if each.core.view is not None and not each.core.finished]
        if not workers:
            return
        process = self.chance.choice(workers)
        core, member = process.core, process.member
        place = self._check_place(core)
        if not process.pull and place >= self.lengths[member.index]:
            self.network.send(member, core.finish())
        elif not process.pull and core.may_pull:
            process.pull = core.pulled + 1
            self.network.send(member, core.pull(range(len(self.storage))))
        elif process.pull and process.values is None:
            if (answers := core.taken(process.pull)) is not None:
                process.values = tuple(answers[index] for index in range(len(self.storage)))
        elif process.values is not None and core.may_push:
            self.network.send(member, core.push(self._gradients(process, place), place=place + 1))
            process.pull, process.values = 0, None

    def _gradients(self, process: Process, place: int) -> list[Any]:
        worker = process.member.index
        if self.traits.synchronous:
            return [gradient(worker, place, process.values or ())] * len(self.storage)
        return [(worker, place + 1)] * len(self.storage)

    # ---- the promises ----------------------------------------------------------------------------------------------

    def _receive(self, sender: Member, receiver: Member, message: Message) -> None:
        process = self.processes.get(receiver)
        before = dict(process.shard.rows) if process is not None and process.shard is not None else {}
        super()._receive(sender, receiver, message)
        if process is not None and process.shard is not None and sender.role is Role.WORKER:
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
            values = tuple(each.checkpoints[save].value for each in self.storage)
            if values != self.reference.values(self._last_step()):
                raise BrokenPromise("the model is not that of an undisturbed run")
            return
        everything = {(who, n) for who, each in self.progress.items() for n in range(1, each.pushed + 1)}
        for index, storage in enumerate(self.storage):
            for row, saved in storage.checkpoints[save].rows.items():
                if len(set(saved.log)) != len(saved.log) or not set(saved.log) <= everything:
                    raise BrokenPromise(f"server {index} applied what it must not to {row}: {saved.log}")
                is_whole = self.traits.recovery is Recovery.FULL or index not in self.lost
                if is_whole and set(saved.log) != everything:
                    raise BrokenPromise(f"server {index} lost nothing, and lacks {everything - set(saved.log)}")
            if not self.ever[index] >= everything:
                raise BrokenPromise(f"nobody ever applied {everything - self.ever[index]} on server {index}")
