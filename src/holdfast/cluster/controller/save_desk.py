"""The saves of a job: when they are due, what they are called, what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.checkpoint.trainer.position import Pause as Rest
from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.losses import Cost
from holdfast.cluster.controller.resume import Beginning
from holdfast.cluster.controller.timetable import Timetable
from holdfast.cluster.core.controller import ControllerCore
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Load, Message, Pause, SavePriority
from holdfast.cluster.core.notes import Decide, Decided, NamedCheckpoint, Outcome
from holdfast.cluster.core.outputs import CalledOff, Output, PrioritySaved, Ready, Saved
from holdfast.cluster.happenings import Committed, Event, Paused, SaveFailed, WentBack
from holdfast.cluster.saved import step_of
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.policy import Overlap
from holdfast.runtime import Runtime

_BEGINNING_S = 60.0  # that a save waits for a worker's first step, and no longer: rows are at risk meanwhile
_PRIORITY = 0  # instead of the number of a save: a priority save has none before there is something to save


class SaveDesk:
    """Keeps the books of saves. What its methods return is for the controller to carry out.

    Server 0 decides what each save holds and tells what became of it: its agent leads commits.

    Args:
        core: The controller's state machine.
        endpoint: The controller's.
        accounts: Of how the training goes.
        saves: When to save.
        between: When to save the rows that come first.
        beginning: Where the job begins.
        synchronous: How the job trains.
        overlap: Whether a save may begin while the last one is being written.
        tell: Hears what happens.
        runtime: Clock.
    """

    def __init__(
        self,
        core: ControllerCore,
        endpoint: Endpoint,
        accounts: Accounts,
        *,
        saves: Timetable,
        between: Timetable,
        beginning: Beginning,
        synchronous: bool,
        overlap: Overlap,
        tell: Callable[[Event], object],
        runtime: Runtime,
    ) -> None:
        self._core = core
        self._endpoint = endpoint
        self._accounts = accounts
        self._saves = saves
        self._between = between
        self._names = {0: beginning.checkpoint}  # of checkpoints, by save
        self._synchronous = synchronous
        self._overlap = overlap
        self._tell = tell
        self._runtime = runtime
        self._requested_s: dict[int, float] = {}  # by save
        self._steps = {0: beginning.step}  # by save
        self._copied: set[int] = set()  # saves that are being written
        self._intent = b""  # of the priority save that begins
        self._rest = Rest()  # after a save that failed: workers waited for it
        self._has_failed = False
        self._whole_s: float | None = None  # since when everyone is there

    @property
    def server_0(self) -> Member:
        """Whoever leads commits now."""
        return self._core.view.member(Role.SERVER, 0)

    @property
    def newest(self) -> int:
        """The last save of this job that became a checkpoint; 0: none did."""
        return max(self._names)

    # ---- before and during -----------------------------------------------------------------------------------------

    def begin_if_due(self) -> Sequence[Output]:
        """Begin what is due, or has failed; where a save is still being written, not before it is."""
        now_s, step = self._runtime.monotonic_s(), self._accounts.step
        is_busy = self._copied and self._overlap is Overlap.SKIP
        if not self._everyone_is_there(now_s) or self._core.is_saving or is_busy or not self._rest.is_over(now_s):
            return ()
        if (self._has_failed or self._saves.is_due(step)) and self._can_pause(now_s):
            return self._core.save()
        if not self._copied and self._between.is_due(step):
            self._between.took(step)
            self._endpoint.send(self.server_0, Decide(_PRIORITY, step, (), priority=True))
        return ()

    def _everyone_is_there(self, now_s: float) -> bool:
        if not self._core.is_whole:
            self._whole_s = None
        elif self._whole_s is None:
            self._whole_s = now_s
        return self._whole_s is not None

    def _can_pause(self, now_s: float) -> bool:
        """Whether workers would not wait for one that has just begun: it hears of a pause in its first step."""
        assert self._whole_s is not None
        workers = [each for each in self._core.view.members if each.role is Role.WORKER]
        return now_s - self._whole_s > _BEGINNING_S or all(map(self._accounts.standing.has_heard, workers))

    def prepare(self, to: Member, message: Message) -> None:
        """What a member must know before it is told this."""
        match message:
            case Load(checkpoint=checkpoint):
                if checkpoint is not None:
                    self._endpoint.send(to, NamedCheckpoint(checkpoint, self._names[checkpoint]))
                if to == self.server_0:
                    self._endpoint.send(to, self._accounts.note())  # it may have to lead the last save alone
            case SavePriority(save):
                self._endpoint.send(to, Decided(save, self._intent, ""))
            case Pause(save):
                self._requested_s.setdefault(save, self._runtime.monotonic_s())

    def ask(self, ready: Ready) -> None:
        """A save can be taken: server 0 decides what it holds."""
        step = self._steps[ready.save] = step_of(ready.progress, synchronous=self._synchronous)
        self._accounts.paused(ready.save, self._core.view, ready.reports)
        self._endpoint.send(self.server_0, self._accounts.note(step))
        surveys = tuple(ready.surveys[server] for server in sorted(ready.surveys))
        self._endpoint.send(self.server_0, Decide(ready.save, step, surveys, force=self._core.wants_to_leave))

    def decided(self, sender: Member, decided: Decided) -> Sequence[Output]:
        """Server 0 has decided. What one says that has been replaced is of a save that was given up with it."""
        if sender != self.server_0:
            return ()
        if decided.save == _PRIORITY:
            if decided.problem or not self._core.is_whole:  # every server has a part in it
                return ()
            self._intent = decided.intent
            return self._core.save_priority()
        if decided.problem:
            return self._core.call_off(decided.save, decided.problem)
        self._saves.took(self._steps[decided.save])
        self._between.took(self._steps[decided.save])
        return self._core.snapshot(decided.intent)

    # ---- after -----------------------------------------------------------------------------------------------------

    def copied(self, saved: Saved) -> None:
        """All servers have copied their parts, and workers go on."""
        pause_s = self._runtime.monotonic_s() - self._requested_s.pop(saved.save)
        self._copied.add(saved.save)
        step, at_s = self._steps[saved.save], self._runtime.wall_s()
        self._tell(Paused(save=saved.save, step=step, pause_s=pause_s, at_s=at_s))

    def settled(self, sender: Member, outcome: Outcome) -> Sequence[Output]:
        """Server 0 has told what became of a save; of one that has been replaced, it was called off."""
        if sender != self.server_0:
            return ()
        self._copied.discard(outcome.save)
        if outcome.problem:
            return self._core.call_off(outcome.save, outcome.problem)
        self._has_failed = False
        self._rest.end()
        self._names[outcome.save] = outcome.checkpoint
        self._accounts.committed(outcome.save)
        step, at_s = self._steps.get(outcome.save, 0), self._runtime.wall_s()
        self._tell(Committed(save=outcome.save, checkpoint=outcome.checkpoint, step=step, at_s=at_s))
        return self._core.committed(outcome.save)

    def server_0_died(self) -> Sequence[Output]:
        """It would have told what becomes of saves that are being written, and its successor knows nothing of these."""
        return [output for save in sorted(self._copied) for output in self._core.call_off(save, "")]

    def called_off(self, called_off: CalledOff) -> None:
        """One that a death ended stays due; one that failed is tried again, but not at once."""
        save, problem = called_off.save, called_off.problem
        self._requested_s.pop(save, None)
        self._copied.discard(save)
        self._has_failed = True
        if problem:
            self._rest.begin(self._runtime.monotonic_s())
        self._tell(SaveFailed(save=save, problem=problem or "somebody died", at_s=self._runtime.wall_s()))

    def priority_saved(self, saved: PrioritySaved) -> None:
        """A server has copied the rows that come first, or could not."""
        if saved.problem:
            self._tell(SaveFailed(save=saved.save, problem=saved.problem, at_s=self._runtime.wall_s()))

    def went_back(self, checkpoint: int) -> Cost:
        """Everyone goes back: what is being written belongs to steps that will be taken again; the cost of that."""
        cost = self._accounts.again(max(0, self._accounts.step - self._steps[checkpoint]))
        self.begin_anew(checkpoint)
        at_s = self._runtime.wall_s()
        self._tell(WentBack(checkpoint=self._names[checkpoint], lost_steps=cost.steps, at_s=at_s))
        return cost

    def begin_anew(self, checkpoint: int) -> None:
        """Everyone begins anew at this checkpoint."""
        self._copied.clear()
        self._has_failed = False
        self._accounts.went_back(checkpoint)
        self._saves.took(self._steps[checkpoint])
