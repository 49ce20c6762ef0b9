"""A worker: keeps what it pushed until it is applied, and sends it again to whoever takes a dead server's place."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cluster.core.allegiance import Allegiance
from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import (
    Applied,
    Broken,
    End,
    Exhausted,
    Finished,
    GoBack,
    GoOn,
    Hello,
    Message,
    NewView,
    Pause,
    Paused,
    Pull,
    Push,
    Rows,
    Send,
    Settled,
    Start,
)
from holdfast.cluster.core.progress import BEGINNING, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Credits:
    """How much of a worker may be on its way to a server: what bounds the memory of both."""

    pulls: int = 2
    pushes: int = 4


@dataclass(slots=True)
class _Channel:
    """What is on its way to one server, or kept for it."""

    incarnation: int
    applied: Progress
    is_open: bool = False  # its hello is answered
    pushes: deque[Push] = field(default_factory=deque)  # not applied yet
    pulls: dict[int, Pull] = field(default_factory=dict)  # not answered yet


class WorkerCore:
    """One life of a worker. The training loop calls ``pull``, ``push`` and ``finish``; ``handle`` takes what arrives.

    Where ``next_life`` is set, its process goes on as that member, with a new core. ``report`` gives what goes with a
    pause, ``dense`` the worker's copy of a server's dense part, for whoever takes that server's place.
    """

    def __init__(
        self,
        member: Member,
        credits: Credits = Credits(),  # noqa: B008 - frozen
        *,
        synchronous: bool = False,
        report: Callable[[], bytes] = bytes,
        dense: Callable[[int], Any] = lambda server: None,
    ) -> None:
        self.member = member
        self.ended = False
        self.finished = False  # its data have ended
        self.next_life: Member | None = None
        self._credits = credits
        self._is_synchronous = synchronous
        self._report = report
        self._dense = dense
        self._view: View | None = None
        self._channels: list[_Channel] = []
        self._answers: dict[int, dict[int, Any]] = {}  # by pull, then by server
        self._pulled = 0
        self._progress = BEGINNING
        self._owed = 0  # the last push of a predecessor that a server has applied
        self._pause: Pause | None = None  # for a save that is waited for
        self._is_settled = False  # all that it did not compute itself is applied everywhere
        self._is_reported = False  # that nothing is in flight
        self._allegiance = Allegiance()

    @property
    def view(self) -> View | None:
        """The newest that it knows; None before it knows where to start."""
        return self._view

    @property
    def is_orphan(self) -> bool:
        """Whether the controller is lost."""
        return self._allegiance.leader.role is not Role.CONTROLLER

    @property
    def is_adrift(self) -> bool:
        """Whether it has ended because it may have missed an order: its process stays until it is replaced."""
        return self._allegiance.is_adrift

    @property
    def workers(self) -> int:
        """How many there are."""
        return 0 if self._view is None else len(self._view.workers)

    @property
    def pulled(self) -> int:
        """The number of its last pull."""
        return self._pulled

    @property
    def progress(self) -> Progress:
        """Its last push, and where in the data the next step starts."""
        return self._progress

    @property
    def unapplied(self) -> int:
        """How many of its pushes some server is not known to have applied."""
        return max((len(each.pushes) for each in self._channels), default=0)

    @property
    def may_pull(self) -> bool:
        """Whether its credits allow another pull."""
        return self._is_running and all(len(each.pulls) < self._credits.pulls for each in self._channels)

    @property
    def may_push(self) -> bool:
        """Whether its credits allow another push."""
        return self._is_running and all(len(each.pushes) < self._credits.pushes for each in self._channels)

    @property
    def _stable(self) -> Progress:
        """What every server has applied."""
        return min((each.applied for each in self._channels), key=lambda each: each.pushed)

    @property
    def _is_running(self) -> bool:
        return self._view is not None and not (self._is_pausing or self.finished or self.ended)

    @property
    def _is_pausing(self) -> bool:
        """It pauses where all servers have applied the same, so not before it has made up for a predecessor."""
        return self._pause is not None and self._progress.pushed >= max(self._owed, self._pause.step)

    def pull(self, rows: Sequence[Any]) -> list[Send]:
        """Ask every server for its rows of a batch; ``taken`` gives the answer."""
        self._pulled += 1
        self._answers[self._pulled] = {}
        sends = []
        for index, each in enumerate(rows):
            pull = Pull(self._pulled, each, self._progress.pushed)
            self._channels[index].pulls[pull.number] = pull
            sends.append(Send(self._server(index), pull))
        return sends

    def is_answered(self, number: int) -> bool:
        """Whether all servers have answered a pull."""
        return len(self._answers[number]) == len(self._channels)

    def taken(self, number: int) -> Mapping[int, Any] | None:
        """The answers of all servers to a pull, once; None before all are there."""
        if len(self._answers[number]) < len(self._channels):
            return None
        return self._answers.pop(number)

    def push(self, gradients: Sequence[Any], place: Any) -> list[Send]:
        """End a step: send every server its gradients, with the place from which the next step starts."""
        self._progress = Progress(self._progress.pushed + 1, place)
        stable, sends = self._stable, []
        for index, each in enumerate(gradients):
            push = Push(self._progress.pushed, each, place, stable)
            self._channels[index].pushes.append(push)
            sends.append(Send(self._server(index), push))
        return [*sends, *self._report_pause()]

    def finish(self) -> list[Send]:
        """The data have ended. It stays, to send again what a dead server had not applied, until it is told to end."""
        self.finished = True
        servers = range(len(self._channels)) if self._is_synchronous else ()
        return [*(Send(self._server(each), Exhausted()) for each in servers), Send(self._allegiance.leader, Finished())]

    def controller_lost(self) -> list[Send]:
        """Follow the heir, server 0."""
        if self._view is None or self.is_orphan:
            self.ended = self.ended or self._view is None
            return []
        early = self._allegiance.lose_controller(self._view)
        return [send for sender, message in early for send in self.handle(sender, message)]

    def handle(self, sender: Member, message: Message) -> list[Send]:
        """Take a message in."""
        if self.ended or not self._allegiance.allows(sender, message):
            return []
        match message:
            case Start(view, progress):
                return list(self._start(view, progress))
            case NewView(view):
                return list(self._adopt_view(view))
            case GoBack(member):
                self.ended, self.next_life = True, member
            case End():
                self.ended = True
            case Pause(view=number) if self._view is not None and self._view.number == number:
                self._pause, self._is_reported = message, False
                return list(self._report_pause())
            case GoOn(save):
                self._pause = None if self._pause is not None and self._pause.save == save else self._pause
            case Broken() if sender == self.member:  # this end's own report
                sends = self._allegiance.report(message)
                self.ended = self.is_adrift
                return sends
            case _ if self._view is not None and self._view.holds(sender):
                return self._from_server(sender, message)
        return []

    def _start(self, view: View, progress: Progress) -> Iterator[Send]:
        self._view = view
        self._progress = progress
        self._channels = [_Channel(each, progress) for each in view.servers]
        for index in range(len(view.servers)):
            yield Send(self._server(index), Hello(progress, progress))

    def _adopt_view(self, view: View) -> Iterator[Send]:
        if view.replaces(self.member):
            self.ended = True  # even before it was told to begin
        if self.ended or self._view is None or view.number <= self._view.number:
            return
        self._view = view
        self._pause = None  # a save does not outlive a death
        for index, channel in enumerate(self._channels):
            if view.servers[index] > channel.incarnation:
                channel.incarnation, channel.is_open = view.servers[index], False
                yield from self._send_again(index, channel)

    def _send_again(self, index: int, channel: _Channel) -> Iterator[Send]:
        """Everything that the dead server had not said to have applied, in order, before anything else."""
        server = self._server(index)
        yield Send(server, Hello(channel.applied, self._stable, self._dense(index)))
        unanswered: list[Message] = [*channel.pushes, *channel.pulls.values()]
        yield from (Send(server, message) for message in unanswered)
        if self.finished and self._is_synchronous:
            yield Send(server, Exhausted())

    def _from_server(self, sender: Member, message: Message) -> list[Send]:
        channel = self._channels[sender.index]
        match message:
            case Rows(number, values):
                if channel.pulls.pop(number, None) is not None:
                    self._answers[number][sender.index] = values
            case Applied(number):
                channel.is_open = True
                self._note_applied(channel, number)
                return [*self._settle(), *self._report_pause()]
        return []

    def _note_applied(self, channel: _Channel, number: int) -> None:
        while channel.pushes and channel.pushes[0].number <= number:
            channel.applied = channel.pushes.popleft().progress
        if not (self._is_synchronous and self.finished):
            self._owed = max(self._owed, number)
        elif number > channel.applied.pushed:  # a step of the others
            channel.applied = Progress(number, self._progress.place)
            self._progress = max(self._progress, self._stable, key=lambda each: each.pushed)

    def _settle(self) -> Iterator[Send]:
        if self._is_synchronous and not self._is_settled and all(each.is_open for each in self._channels):
            self._is_settled = True
            yield Send(self._allegiance.leader, Settled())

    def _report_pause(self) -> Iterator[Send]:
        if self._pause is None or self._is_reported or not self._is_pausing:
            return
        if self._is_synchronous or all(each.is_open and not each.pushes for each in self._channels):
            self._is_reported = True
            yield Send(self._allegiance.leader, Paused(self._pause.save, self._progress, self._report()))

    def _server(self, index: int) -> Member:
        return Member(Role.SERVER, index, self._channels[index].incarnation)
