"""The controller's loop: deaths, messages and the clock in; messages, processes and checkpoints out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.crew import FIRST_SPARE, Crew
from holdfast.cluster.controller.recoveries import Recoveries
from holdfast.cluster.controller.redundancy import Redundancy
from holdfast.cluster.controller.save_desk import SaveDesk
from holdfast.cluster.controller.streaks import Mark, Streaks
from holdfast.cluster.controller.worker_count import WorkerCount
from holdfast.cluster.core import outputs as out
from holdfast.cluster.core.controller import ControllerCore, Recovery
from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.core.messages import Broken, End, GoBack, Message, Send
from holdfast.cluster.core.notes import Decided, Outcome, Stats, Up
from holdfast.cluster.core.parity_messages import OutOfReach
from holdfast.cluster.happenings import PARTIAL, Died, Ended, Event, LostSamples, SpareFailed
from holdfast.cluster.launch.base import Launcher
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.policy import Ladder
from holdfast.runtime import SYSTEM, Runtime

_PATIENCE_S = 0.1
_NOWHERE = Mark(checkpoint=0, steps=0)  # where a spare is: no save and no step is its doing
_END_S = 120.0  # that processes may take to end, agents that commit included
_DESERTED = "this process did not run for so long that the others took it for dead, saved and ended"


class Deserted(Exception):
    """Nobody is left, and nobody was told to end: the job goes on where it was saved, with other processes."""


class Controller:
    """Runs a job to its end.

    Args:
        core: The controller's state machine.
        endpoint: The controller's, which processes were told of.
        crew: The processes.
        launcher: Tells of deaths.
        accounts: Of how it goes.
        desk: Its saves.
        count: How many workers it has.
        ladder: How deaths of servers are made up for.
        redundancy: Whether rows are protected by parity.
        baseline_first: Save before the first step: what priority saves build on.
        tell: Hears what happens.
        runtime: Clock.
    """

    def __init__(
        self,
        core: ControllerCore,
        endpoint: Endpoint,
        crew: Crew,
        launcher: Launcher,
        accounts: Accounts,
        desk: SaveDesk,
        count: WorkerCount,
        ladder: Ladder,
        redundancy: Redundancy,
        *,
        baseline_first: bool,
        tell: Callable[[Event], object],
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._core = core
        self._endpoint = endpoint
        self._crew = crew
        self._launcher = launcher
        self._accounts = accounts
        self._desk = desk
        self._count = count
        self._ladder = ladder
        self._redundancy = redundancy
        self._baseline_first = baseline_first
        self._tell = tell
        self._runtime = runtime
        self._recoveries = Recoveries(tell, runtime, parity=ladder.parity is not None)
        self._streaks = Streaks(runtime)
        self._ended: out.Ended | None = None
        self._is_deserted = False
        self._wants_stop = False

    def run(self, wake_fds: Sequence[int] = (), on_turn: Callable[[], None] = lambda: None) -> str:
        """Until everyone has ended; the problem that ended the job, empty where all is well.

        Raises:
            Deserted: This process was stopped, or could not be reached, for longer than the others waited for it.
        """
        for member in self._core.view.members:
            self._start(member)
        self._start_spares()
        self._start_due()
        while self._ended is None:
            self._turn(wake_fds)
            on_turn()
        self._wait_for_the_end(on_turn)
        if self._is_deserted:
            raise Deserted(_DESERTED)
        return self._ended.problem

    def stop(self) -> None:
        """Save, then end. May be called from a signal handler."""
        self._wants_stop = True

    def _turn(self, wake_fds: Sequence[int]) -> None:
        self._endpoint.wait(_PATIENCE_S, (self._launcher.fileno(), *wake_fds))
        self._hear_of_deaths()
        for sender, message in self._endpoint.receive(0.0):
            self._take(sender, message)
        for member in self._crew.silent():
            self._die(member, "was not heard from for too long")
        if self._wants_stop:
            self._carry_out(self._core.stop())
        if (workers := self._count.take()) is not None:
            self._resize(workers)
        self._carry_out(self._desk.begin_if_due())
        self._notice_wholeness()
        self._tell_losses()
        self._start_due()

    # ---- who is there ----------------------------------------------------------------------------------------------

    def _hear_of_deaths(self) -> None:
        buried = self._crew.bury()
        if any(death.is_return and self._core.view.holds(member) for member, death in buried):
            self._is_deserted = True
            self._carry_out(self._core.end(_DESERTED))  # whoever follows an heir does not listen; others would wait
            return
        for member, death in buried:
            self._lose(member, death.how if not death.last_words else f"{death.how}: {death.last_words}")

    def _lose(self, member: Member, how: str) -> None:
        """A process is gone, or could not be started."""
        self._die(member, how)
        if member.index >= FIRST_SPARE:
            self._streaks.died(member, _NOWHERE)
            if self._streaks.length(member) == 1:  # what follows is more of the same
                spares = len(self._crew.spares)
                self._tell(SpareFailed(spares=spares, problem=how, at_s=self._runtime.wall_s()))
            self._start_spares()

    def _die(self, member: Member, how: str) -> None:
        self._endpoint.disconnect(member)
        self._accounts.died(member)
        if member.role is Role.SERVER:
            self._choose_rung(self._recoveries.lost_servers + 1)
        is_done = self._core.has_finished(member)
        outputs = self._core.died(member)
        if not outputs:  # a spare, or one that has left or was replaced: nobody waits for its end
            self._crew.fence(member)
        if outputs:
            self._tell(Died(member=member, how=how, at_s=self._runtime.wall_s()))
        if outputs and not is_done:
            self._streaks.died(member, self._mark(member))
        self._carry_out(outputs)
        if outputs and (member.role, member.index) == (Role.SERVER, 0):
            self._carry_out(self._desk.server_0_died())
        if outputs and (verdict := self._streaks.verdict(member)):
            problem = f"{verdict}; remove the cause, then start the job again. The last time: {how}"
            self._carry_out(self._core.end(problem))

    def _mark(self, member: Member) -> Mark:
        """How far the job is, as its place sees it."""
        return Mark(checkpoint=self._desk.newest, steps=self._accounts.steps_of(member))

    def _start(self, member: Member) -> None:
        self._crew.start(member, self._runtime.monotonic_s() + self._streaks.pause_s(member))

    def _start_spares(self) -> None:
        for spare in self._crew.missing_spares:
            self._start(spare)

    def _start_due(self) -> None:
        """Behind everything else: what the end of a job prevents is not begun. One that cannot be started has died."""
        if self._ended is None:
            for member, problem in self._crew.start_due(self._runtime.monotonic_s()):
                self._lose(member, problem)

    def _choose_rung(self, lost_servers: int) -> None:
        """What parity cannot give comes from the newest rows saved, unless that would lose too much."""
        rung = self._ladder.below_parity(self._accounts.fall(lost_servers))
        self._core.recovery = Recovery.PARTIAL if rung == PARTIAL else Recovery.FULL

    def _replace(self, member: Member) -> None:
        spare = self._crew.place_spare(member)
        self._recoveries.begin(member, by_spare=spare is not None, loses=not self._core.is_gathering)
        if member.role is Role.SERVER:
            self._redundancy.lay_bare()
        if spare is None:
            self._start(member)
        else:
            self._streaks.forget(spare)
            self._endpoint.send(spare, GoBack(member))

    def _resize(self, workers: int) -> None:
        lacking = self._launcher.lacks(Role.WORKER, workers - len(self._core.view.workers))
        if lacking:
            self._count.failed(workers, lacking)
        else:
            self._carry_out(self._core.resize(workers))

    def _welcome(self, member: Member) -> None:
        """A process introduced itself: tell it of the others, and the others of it."""
        for former in self._crew.up(member):
            self._endpoint.disconnect(former)
        if member.index >= FIRST_SPARE:
            self._endpoint.reach(member)  # now: when a place is free, workers wait
            return
        others = [each for each in self._core.view.members if each != member and each in self._endpoint.addresses]
        self._endpoint.introduce(member, others)
        for each in others:
            self._endpoint.introduce(each, [member])
        self._carry_out(self._core.up(member))

    def _notice_wholeness(self) -> None:
        if not self._core.is_whole:
            return
        if self._recoveries.end():
            self._start_spares()  # not before: a process that starts would compete with the one that loads
        self._count.settled()
        if self._recoveries.start() and self._baseline_first:
            self._carry_out(self._core.save())

    def _tell_losses(self, *, at_once: bool = False) -> None:
        """Where rows are still coming back, more of them may be lost: they are charged once, when all are there."""
        is_known = at_once or self._core.is_whole
        for loss in self._accounts.settle(len(self._core.view.workers), at_once=at_once) if is_known else ():
            at_s = self._runtime.wall_s()
            if loss.cost.steps:
                self._tell(LostSamples(member=loss.server, steps=loss.cost.steps, pls=loss.pls, at_s=at_s))
            self._recoveries.lost(loss)
            self._endpoint.send(self._desk.server_0, self._accounts.note())
        self._recoveries.settle()

    # ---- what members say ------------------------------------------------------------------------------------------

    def _take(self, sender: Member, message: Message) -> None:
        match message:
            case Up():
                self._welcome(sender)
            case Stats(report):
                self._accounts.hear(sender, report)
            case Decided():
                self._carry_out(self._desk.decided(sender, message))
            case Outcome():
                self._carry_out(self._desk.settled(sender, message))
            case Broken():
                self._die(self._crew.known_as(message.to_replace(sender)), _missing(sender, message.member))
            case OutOfReach():
                self._choose_rung(self._recoveries.lost_servers)
                self._carry_out(self._core.handle(sender, message))
            case _:
                self._carry_out(self._core.handle(sender, message))

    def _carry_out(self, outputs: Iterable[out.Output]) -> None:
        for output in outputs:
            match output:
                case Send(to, message):
                    self._send(to, message)
                case out.Replace(member):
                    self._replace(member)
                case out.Join(member):
                    self._start(member)
                case out.Fence(member):
                    self._crew.fence(member)
                case out.Ready():
                    self._tell_losses()
                    self._desk.ask(output)
                case out.Saved():
                    self._desk.copied(output)
                case out.CalledOff():
                    self._desk.called_off(output)
                case out.PrioritySaved():
                    self._desk.priority_saved(output)
                case out.Restored(server, rows, fallen):
                    self._recoveries.restored(server, rows, fallen)
                case out.Protected(stripes):
                    for redundant in self._redundancy.protected(stripes):
                        self._tell(redundant)
                case out.WentBack(checkpoint):
                    self._redundancy.lay_bare()
                    self._recoveries.went_back(self._desk.went_back(checkpoint))
                case out.Resized(checkpoint, workers):
                    self._desk.begin_anew(checkpoint)
                    self._accounts.standing.resized(workers)
                    self._count.changed(workers)
                case out.ResizeFailed(workers, problem):
                    self._count.failed(workers, problem)
                case out.Loss(server, worker, pushes):
                    self._accounts.lost(server, worker, pushes)
                case out.Ended():
                    self._ended = output

    def _send(self, to: Member, message: Message) -> None:
        self._desk.prepare(to, message)
        if isinstance(message, GoBack):  # first: its first beat as the next one may come before this thread runs again
            self._crew.goes_back(to, message.member)
            self._recoveries.goes_on(message.member)
        self._endpoint.send(to, message)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _wait_for_the_end(self, on_turn: Callable[[], None]) -> None:
        """Whoever introduces itself late is told to end as well."""
        assert self._ended is not None
        self._count.close()
        self._tell_losses(at_once=True)
        self._recoveries.settle(otherwise=self._accounts.since_checkpoint())
        self._tell(Ended(problem=self._ended.problem, at_s=self._runtime.wall_s()))
        for spare in self._crew.spares:
            self._endpoint.send(spare, End())
        end_s = self._runtime.monotonic_s() + _END_S
        while not self._crew.is_empty and self._runtime.monotonic_s() < end_s:
            self._endpoint.wait(_PATIENCE_S, (self._launcher.fileno(),))
            for sender, message in self._endpoint.receive(0.0):
                if isinstance(message, Stats):
                    self._accounts.hear(sender, message.report)
                if isinstance(message, Up | Stats):
                    self._endpoint.send(sender, End())
                if isinstance(message, Broken) and message.member == CONTROLLER:  # it cannot hear of the end
                    self._crew.fence(self._crew.known_as(sender))
            self._crew.bury()
            on_turn()


def _missing(receiver: Member, sender: Member) -> str:
    """How somebody died of frames that did not arrive."""
    if sender == CONTROLLER:
        return "frames of the controller did not reach it"
    return "frames of it are missing" if receiver == CONTROLLER else f"frames of it are missing, says {receiver}"
