"""A worker: keeps what it pushed until it is applied, and sends it again to whoever takes a dead server's place."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import (
    BEGINNING,
    Applied,
    GoOn,
    Hello,
    Message,
    NewView,
    Pause,
    Paused,
    Progress,
    Pull,
    Push,
    Rows,
    Send,
    Start,
)


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
    """One life of a worker. The training loop calls ``pull`` and ``push``; ``handle`` takes what arrives."""

    def __init__(self, member: Member, credits: Credits = Credits()) -> None:  # noqa: B008 - frozen
        self.member = member
        self._credits = credits
        self._view: View | None = None
        self._channels: list[_Channel] = []
        self._answers: dict[int, dict[int, Any]] = {}  # by pull, then by server
        self._pulled = 0
        self._progress = BEGINNING
        self._owed = 0  # the last push of a predecessor that a server has applied
        self._pause: int | None = None  # the save that is waited for
        self._is_reported = False  # that nothing is in flight
        self.ended = False

    @property
    def started(self) -> bool:
        """Whether it knows where to start."""
        return self._view is not None

    @property
    def pulled(self) -> int:
        """The number of its last pull."""
        return self._pulled

    @property
    def progress(self) -> Progress:
        """Its last push, and where in the data the next step starts."""
        return self._progress

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
        """It pauses where all servers have applied the same, so not before it has made up for a predecessor."""
        is_pausing = self._pause is not None and self._progress.pushed >= self._owed
        return self._view is not None and not is_pausing and not self.ended

    def pull(self, rows: Sequence[Any]) -> list[Send]:
        """Ask every server for its rows of a batch; ``taken`` gives the answer."""
        self._pulled += 1
        self._answers[self._pulled] = {}
        return list(self._pull(Pull(self._pulled, each) for each in rows))

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
        return sends

    def handle(self, sender: Member, message: Message) -> list[Send]:
        """Take a message in."""
        if self.ended:
            return []
        match message:
            case Start(view, progress):
                return list(self._start(view, progress))
            case NewView(view):
                return list(self._adopt_view(view))
            case Pause(save):
                self._pause, self._is_reported = save, False
                return list(self._report_pause())
            case GoOn(save):
                self._pause = None if self._pause == save else self._pause
                return []
        if self._view is None or not self._view.holds(sender):
            return []
        return self._from_server(sender, message)

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
        yield Send(server, Hello(channel.applied, self._stable))
        unanswered: list[Message] = [*channel.pushes, *channel.pulls.values()]
        yield from (Send(server, message) for message in unanswered)

    def _from_server(self, sender: Member, message: Message) -> list[Send]:
        channel = self._channels[sender.index]
        match message:
            case Rows(number, values):
                if channel.pulls.pop(number, None) is not None:
                    self._answers[number][sender.index] = values
            case Applied(number):
                channel.is_open = True
                self._owed = max(self._owed, number)
                while channel.pushes and channel.pushes[0].number <= number:
                    channel.applied = channel.pushes.popleft().progress
                return list(self._report_pause())
        return []

    def _report_pause(self) -> Iterator[Send]:
        if self._pause is None or self._is_reported:
            return
        if self._progress.pushed >= self._owed and all(each.is_open and not each.pushes for each in self._channels):
            self._is_reported = True
            yield Send(CONTROLLER, Paused(self._pause, self._progress))

    def _pull(self, pulls: Iterator[Pull]) -> Iterator[Send]:
        for index, pull in enumerate(pulls):
            self._channels[index].pulls[pull.number] = pull
            yield Send(self._server(index), pull)

    def _server(self, index: int) -> Member:
        return Member(Role.SERVER, index, self._channels[index].incarnation)
