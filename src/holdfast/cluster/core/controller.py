"""The controller: replaces whoever died, publishes views, and finds out where everyone goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from holdfast.cluster.core.coverage import Coverage
from holdfast.cluster.core.inquest import Inquest
from holdfast.cluster.core.leader import Leader
from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import (
    CallOff,
    End,
    GoBack,
    Load,
    Loaded,
    Lost,
    Message,
    NewView,
    Send,
    Settled,
    Standing,
    Start,
)
from holdfast.cluster.core.outputs import (
    CalledOff,
    Fence,
    Join,
    Loss,
    Output,
    Protected,
    Replace,
    Resized,
    ResizeFailed,
    Restored,
    WentBack,
)
from holdfast.cluster.core.parity_messages import FallBack, Hurry, OutOfReach, Rebuild, Rebuilt, Redundant
from holdfast.cluster.core.progress import BEGINNING, Progress


class Recovery(Enum):
    """What the death of a server means for the others.

    Attributes:
        PARTIAL: They go on. The new server has the newest rows saved.
        FULL: Everyone goes back to the last checkpoint. It is always so in synchronous training.
    """

    PARTIAL = "partial"
    FULL = "full"


class ControllerCore(Leader):
    """The only one that decides who is alive. ``handle`` takes what members say, ``died`` what a launcher saw.

    The job begins as it goes on after a full recovery: servers load a checkpoint, and when all have, workers start.
    """

    def __init__(
        self,
        view: View,
        *,
        progress: Mapping[int, Progress] | None = None,
        synchronous: bool = False,
        recovery: Recovery = Recovery.PARTIAL,
        parity: bool = False,
    ) -> None:
        super().__init__(view, synchronous=synchronous, progress=progress)
        self.recovery = recovery  # from the next death on
        self._has_parity = parity  # recovery is for what it cannot give
        self._up: set[Member] = set()  # processes that run, told of their view or not
        self._told: set[Member] = set()  # members that were given a view to begin with
        self._loading: set[Member] = set()
        self._unsettled: set[Member] = set()  # new ones who need what others have not finished
        self._called_back: dict[Member, Member] = {}  # until they are up as who they are to be
        self._hurried: set[Member] = set()  # servers that were told that the last save waits for their rows
        self._inquests: dict[int, Inquest] = {}
        self._starts: dict[int, Progress] = {}  # where workers go on that are not started yet
        self._lives = list(view.workers)  # the last incarnation in every place that there ever was
        self._wanted_workers: int | None = None
        self._checkpoint = 0  # the last save that was committed; 0: what the job began with
        self._is_gathering = True  # servers load the checkpoint; no worker has started
        self._coverage = Coverage()

    @property
    def _is_full(self) -> bool:
        return self._is_synchronous or self.recovery is Recovery.FULL

    @property
    def is_gathering(self) -> bool:
        """Whether servers load a checkpoint from which all begin, so that one that dies loses nothing."""
        return self._is_gathering

    @property
    def is_whole(self) -> bool:
        """Whether every member is at work."""
        is_busy = self._is_gathering or self._loading or self._inquests or self._starts
        return not is_busy and self._told.issuperset(self.view.members)

    def up(self, member: Member) -> list[Output]:
        """A process runs, as this member."""
        if self.ended:
            return [Send(member, End())]
        if (replacement := self._called_back.get(member)) is not None:
            return [Send(member, GoBack(replacement))]
        self._came_back(member)
        if not self.view.holds(member):
            return [Fence(member)]
        self._up.add(member)
        if member.role is Role.WORKER:
            return [*self._start(member.index), *self._proceed()]
        self._told.add(member)
        self._loading.add(member)
        if self._is_gathering:
            return [Send(member, Load(self.view, self._checkpoint, self._places))]
        if self._has_parity:
            return [Send(member, Rebuild(self.view, self._absent)), *self._proceed()]
        return [Send(member, Load(self.view, None, {}))]

    def _came_back(self, member: Member) -> None:
        """Its process is who it is to be: nobody has to be called to any of its former lives."""
        former = {new: old for old, new in self._called_back.items()}
        while (life := former.get(member)) is not None:
            del self._called_back[life]
            member = life

    def died(self, member: Member) -> list[Output]:
        """A process ended, stopped answering, or lost frames: another takes its place."""
        lives = [member]
        while (life := self._called_back.pop(lives[-1], None)) is not None:
            lives.append(life)
        dead = lives[-1]
        if self.ended or dead.role is Role.CONTROLLER or not self.view.holds(dead):
            return []
        outputs = [*self._abandon_save()]
        if self._sets_everyone_back(dead):
            outputs.append(WentBack(self._checkpoint))
            outputs.extend(self._go_back(self.view.replacing_all(), dead))
        else:
            outputs.extend(self._replace(dead))
        # It may live, unreachable for now: the view ends it when it wakes.
        outputs.extend(each for life in lives for each in (Fence(life), Send(life, NewView(self.view))))
        return [*outputs, *self._proceed()]

    def resize(self, workers: int) -> list[Output]:
        """Change the number of workers, behind a save. Those that stay, and those that come back, keep their places."""
        self._wanted_workers = workers
        return self._proceed()

    def _sets_everyone_back(self, dead: Member) -> bool:
        """Without parity, a server does. With it, a worker and a server that die within one step of all do."""
        if self._is_gathering or not self._has_parity:
            return dead.role is Role.SERVER and self._is_full and not self._is_gathering
        return self._is_synchronous and any(each.role is not dead.role for each in self._unsettled)

    # ---- one death -------------------------------------------------------------------------------------------------

    def _replace(self, dead: Member) -> Iterator[Output]:
        self.view = self.view.replacing(dead)
        if dead.role is Role.WORKER:
            self._lives[dead.index] += 1
        for known in (self._up, self._told, self._loading, self._finished, self._unsettled):
            known.discard(dead)
        if self._has_parity and not self._is_gathering:
            self._unsettled.add(self.view.member(dead.role, dead.index))
        yield Replace(self.view.member(dead.role, dead.index))
        yield from (Send(each, NewView(self.view)) for each in self.view.members if each in self._told)
        if dead.role is Role.WORKER and not self._is_gathering:
            yield from self._inquire(dead.index)
        elif dead.role is Role.SERVER:
            for inquest in list(self._inquests.values()):
                inquest.forget(dead)
                yield from self._close(inquest)

    def _inquire(self, worker: int) -> Iterator[Output]:
        self._starts.pop(worker, None)
        asked = {each for each in self._told if each.role is Role.SERVER}
        stable = self._stable.get(worker, BEGINNING)
        self._inquests[worker] = Inquest(self.view.member(Role.WORKER, worker), asked, stable=stable)
        yield from self._close(self._inquests[worker])

    def _close(self, inquest: Inquest) -> Iterator[Output]:
        if not inquest.asked:
            worker = inquest.replacement.index
            del self._inquests[worker]
            self._starts[worker] = inquest.conclusion(len(self.view.servers))
            yield from self._start(worker)

    def _handle(self, sender: Member, message: Message) -> Iterable[Output]:
        match message:
            case Loaded():
                self._loading.discard(sender)
                return self._start_all()
            case Lost(worker, pushes):
                return [Loss(sender, worker, pushes)]
            case Settled():
                self._unsettled.discard(sender)
            case OutOfReach():
                return self._climb_down(sender)
            case Rebuilt(rows, fallen):
                self._loading.discard(sender)
                return [Restored(sender, rows, fallen)]
            case Redundant():
                self._coverage.hear(sender, message, self.view)
                return [Protected(self._coverage.take_encoded())] if self._coverage.is_complete(self.view) else []
            case Standing(worker, incarnation) if worker in self._inquests:
                inquest = self._inquests[worker]
                if inquest.replacement.incarnation == incarnation:
                    inquest.hear(sender, message)
                    return self._close(inquest)
                return []
        return super()._handle(sender, message)

    def _climb_down(self, server: Member) -> Iterator[Output]:
        """What parity cannot give comes from saves: for one server, or for all."""
        if self._is_full:
            yield from self._abandon_save()
            yield WentBack(self._checkpoint)
            yield from self._go_back(self.view.replacing_all())
        else:
            yield Send(server, FallBack())

    def _start(self, worker: int) -> Iterator[Output]:
        """Start a worker once its process runs and it is known where it goes on."""
        member = self.view.member(Role.WORKER, worker)
        if member in self._up and worker in self._starts:
            self._told.add(member)
            yield Send(member, Start(self.view, self._starts.pop(worker)))

    # ---- everyone goes back ----------------------------------------------------------------------------------------

    def _go_back(self, view: View, dead: Member | None = None) -> Iterator[Output]:
        """Everyone begins anew at the checkpoint, as the next incarnation, so that nothing older is heard."""
        before, self.view = self.view, view
        self._lives[: len(view.workers)] = view.workers
        for member in before.members:
            if member.index >= len(view.workers) and member.role is Role.WORKER:
                yield Send(member, End())
            elif member != dead:
                self._called_back[member] = view.member(member.role, member.index)
                if member in self._up:
                    yield Send(member, GoBack(self._called_back[member]))
        missing = (each for each in view.members if each not in self._called_back.values())
        yield from (Join(each) if dead is None else Replace(each) for each in missing)
        for known in (self._up, self._told, self._loading, self._finished, self._unsettled):
            known.clear()
        for told in (self._inquests, self._starts, self._copied):
            told.clear()
        self._is_gathering = True

    def _start_all(self) -> Iterator[Output]:
        """Let workers start when every server has loaded the checkpoint."""
        servers = set(self._members(Role.SERVER))
        if not self._is_gathering or self._loading or not self._told >= servers:
            return
        self._is_gathering = False
        self._starts = {worker: self._places[worker] for worker in range(len(self.view.workers))}
        for worker in list(self._starts):
            yield from self._start(worker)

    @property
    def _places(self) -> Mapping[int, Progress]:
        """Where workers go on from the checkpoint, and where those were who have left.

        In synchronous training all who are there have taken the same steps.
        """
        saved = self._progress
        places = {worker: saved.get(worker, BEGINNING) for worker in range(len(self.view.workers))}
        if self._is_synchronous:
            last = max(each.pushed for each in (*saved.values(), *places.values()))
            places = {worker: Progress(last, each.place) for worker, each in places.items()}
        return {**places, **self._absent}

    # ---- saves -----------------------------------------------------------------------------------------------------

    def _abandon_save(self) -> Iterator[Output]:
        """A death ends a save that is not copied, and lets those go on who wait for a commit."""
        save, self._save, self._last = self._save, None, None
        if save is not None:
            yield CalledOff(save.number, "")
            yield from (Send(each, CallOff(save.number)) for each in self._servers_at_work())

    @property
    def _stable(self) -> Mapping[int, Progress]:
        """What every server has applied, at least."""
        return next(reversed(self._copied.values()), self._progress)

    def call_off(self, save: int, problem: str) -> list[Output]:
        """A save failed, and with it a change of the number of workers that waited for it."""
        wanted, is_waited_for = self._wanted_workers, self._is_waited_for(save)
        outputs = super().call_off(save, problem)
        if wanted is None or not is_waited_for:
            return outputs
        self._wanted_workers = None
        return [*outputs, ResizeFailed(wanted, problem)]

    @property
    def _wants_to_leave(self) -> bool:
        return self._wants_end or self._wanted_workers is not None

    def _proceed(self) -> list[Output]:
        """Begin the save that is wanted, if it can be taken; whoever it has to wait for is told so."""
        slow = self._loading - self._hurried if self._has_parity and self._wants_to_leave else set()
        if self._is_gathering or not slow:
            return super()._proceed()
        self._hurried |= slow
        return [*super()._proceed(), *(Send(each, Hurry()) for each in sorted(slow, key=str))]

    def _conclude(self) -> list[Output]:
        if self._wants_end or self._wanted_workers is None:
            return self.end()
        count, self._wanted_workers, self._last = self._wanted_workers, None, None
        self._lives.extend(0 for _ in range(count - len(self._lives)))
        view = self.view.replacing_all(tuple(each + 1 for each in self._lives[:count]))
        return [Resized(self._checkpoint, count), *self._go_back(view)]

    def _keep(self, save: int, progress: Mapping[int, Progress]) -> None:
        self._checkpoint, self._progress = save, progress

    def _processes(self) -> Iterable[Member]:
        return [each for each in self.view.members if each in self._up]

    def _servers_at_work(self) -> Iterable[Member]:
        return [each for each in self._members(Role.SERVER) if each in self._told - self._loading]
