"""Whoever leads saves and ends the job: the controller, or server 0 as its heir."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import (
    Broken,
    CallOff,
    Copied,
    End,
    Failed,
    Finished,
    GoOn,
    Loaded,
    Lost,
    Message,
    Paused,
    SavePriority,
    Send,
    Settled,
    Standing,
    Surveyed,
)
from holdfast.cluster.core.outputs import CalledOff, Ended, Output, PrioritySaved
from holdfast.cluster.core.parity_messages import OutOfReach, Rebuilt, Redundant
from holdfast.cluster.core.progress import Progress
from holdfast.cluster.core.save import Save

Report: TypeAlias = (
    Loaded | Lost | OutOfReach | Rebuilt | Redundant
    | Standing | Paused | Surveyed | Copied | Finished | Settled | Failed | Broken
)  # fmt: skip  # what it is told


class Leader:
    """Takes saves, and ends the job after a last one.

    On its own it is the heir of a controller that died: ``stop`` is its first call, and whatever goes wrong ends the
    job as it is. Its process sends itself what its server is told, and passes on what is said to a controller.
    """

    def __init__(
        self,
        view: View,
        *,
        synchronous: bool = False,
        last_save: int = 0,
        progress: Mapping[int, Progress] | None = None,
    ) -> None:
        self.view = view
        self.ended = False
        self._is_synchronous = synchronous
        self._saves = last_save
        self._progress = progress or {}  # in the last checkpoint, of every worker that there ever was
        self._save: Save | None = None
        self._copied: dict[int, Mapping[int, Progress]] = {}  # saves that are not committed yet
        self._last: int | None = None  # the save after which nobody goes on as before
        self._is_stopping = False
        self._may_try_again = True  # to take the last save
        self._finished: set[Member] = set()
        self._priority: set[tuple[int, Member]] = set()  # answers to priority saves that are waited for

    # ---- what a process asks for -----------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether every member is at work."""
        return True

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way."""
        return self._save is not None or self._last is not None

    def has_finished(self, worker: Member) -> bool:
        """Whether a worker's data have ended, so that it waits for the others."""
        return worker in self._finished

    def save(self) -> list[Output]:
        """Begin a save, unless one is under way or somebody is missing."""
        if self.ended or self.is_saving or not self.is_whole:
            return []
        self._saves += 1
        self._save = Save(self._saves, self.view, self._is_synchronous, self._absent)
        return list(self._save.begin())

    def snapshot(self, intent: bytes) -> list[Output]:
        """Go on with a save that is ready."""
        return [] if self._save is None else list(self._save.snapshot(intent))

    def save_priority(self) -> list[Output]:
        """Begin a priority save on every server that has rows."""
        if self.ended:
            return []
        self._saves += 1
        self._priority = {(self._saves, each) for each in self._servers_at_work()}
        return [Send(each, SavePriority(number)) for number, each in sorted(self._priority, key=str)]

    def committed(self, save: int) -> list[Output]:
        """A save is a checkpoint now."""
        if save not in self._copied:
            return []
        self._keep(save, self._copied[save])
        self._copied = {number: each for number, each in self._copied.items() if number > save}
        return self._conclude() if save == self._last else []

    def call_off(self, save: int, problem: str) -> list[Output]:
        """A save failed, before or after it was copied. The training goes on; a last one is tried once more."""
        is_last = self._is_waited_for(save)
        if not self._forget(save):
            return []
        outputs: list[Output] = [CalledOff(save, problem)]
        outputs.extend(Send(each, CallOff(save)) for each in self._servers_at_work())
        outputs.extend(Send(each, GoOn(save)) for each in self._members(Role.WORKER))
        if is_last and self._wants_end:
            outputs.extend(self._proceed() if self._may_try_again else self.end(problem))
            self._may_try_again = False
        return outputs

    def stop(self) -> list[Output]:
        """Save, then end; as soon as everyone is at work."""
        self._is_stopping = True
        return self._proceed()

    def end(self, problem: str = "") -> list[Output]:
        """End at once."""
        if self.ended:
            return []
        self.ended = True
        return [*(Send(each, End()) for each in self._processes()), Ended(problem)]

    def died(self, member: Member) -> list[Output]:
        """A process ended, stopped answering, or lost frames. Nobody is there to replace it."""
        return self.end(f"{member} died after the controller") if self.view.holds(member) else []

    # ---- what members say ------------------------------------------------------------------------------------------

    def handle(self, sender: Member, message: Message) -> list[Output]:
        """Take a message in."""
        if self.ended or not self.view.holds(sender):
            return []
        return [*self._handle(sender, message), *self._proceed()]

    def _handle(self, sender: Member, message: Message) -> Iterable[Output]:
        match message:
            case Broken(member) if member.role is not Role.CONTROLLER:  # which an heir has lost anyhow
                return self.died(member)
            case Failed(problem):
                return self.end(f"{sender}: {problem}")
            case Finished():
                self._finished.add(sender)
            case Paused(save) | Surveyed(save) if self._save is not None and self._save.number == save:
                return self._save.hear(sender, message)
            case Copied():
                return self._hear_copied(sender, message)
        return []

    def _hear_copied(self, sender: Member, copied: Copied) -> Iterator[Output]:
        if (copied.save, sender) in self._priority:
            yield PrioritySaved(sender, copied.save, copied.problem, copied.report)
        save = self._save
        if save is None or save.number != copied.save:
            return
        if copied.problem:
            yield from self.call_off(save.number, f"{sender}: {copied.problem}")
            return
        for saved in save.copy(sender.index, copied):
            yield saved
            yield from self._saved(save)

    def _saved(self, save: Save) -> Iterator[Output]:
        self._save = None
        self._copied[save.number] = save.progress
        if self._wants_to_leave:
            self._last = save.number
            return
        for worker in self._members(Role.WORKER):
            yield Send(worker, GoOn(save.number))

    # ---- what follows ----------------------------------------------------------------------------------------------

    @property
    def _wants_end(self) -> bool:
        return self._is_stopping or self._finished.issuperset(self._members(Role.WORKER))

    @property
    def wants_to_leave(self) -> bool:
        """Whether the training does not go on behind the next save as before."""
        return self._wants_to_leave

    @property
    def _wants_to_leave(self) -> bool:
        """Whether the training does not go on behind a save as before."""
        return self._wants_end

    def _proceed(self) -> list[Output]:
        """Begin the save that is wanted, if it can be taken."""
        return self.save() if self._wants_to_leave else []

    def _conclude(self) -> list[Output]:
        """The save that was waited for is committed."""
        return self.end()

    def _is_waited_for(self, save: int) -> bool:
        """Whether workers pause for it."""
        return self._last == save or (self._save is not None and self._save.number == save)

    def _forget(self, save: int) -> bool:
        """Whether there was such a save."""
        is_known = save in self._copied or self._is_waited_for(save)
        if self._is_waited_for(save):
            self._save = self._last = None
        self._copied.pop(save, None)
        return is_known

    @property
    def _absent(self) -> Mapping[int, Progress]:
        """How far those came who have left: every checkpoint says so."""
        return {worker: each for worker, each in self._progress.items() if worker >= len(self.view.workers)}

    def _keep(self, save: int, progress: Mapping[int, Progress]) -> None:
        """A checkpoint to which everyone can go back."""

    def _processes(self) -> Iterable[Member]:
        """Whoever can be told to end."""
        return self.view.members

    def _servers_at_work(self) -> Iterable[Member]:
        return self._members(Role.SERVER)

    def _members(self, role: Role) -> Iterator[Member]:
        return (member for member in self.view.members if member.role is role)
