"""A server: applies each worker's pushes whole, in order, exactly once, and answers pulls from the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import (
    BEGINNING,
    Applied,
    Copied,
    Hello,
    Load,
    Loaded,
    Message,
    NewView,
    Progress,
    Pull,
    Push,
    Rows,
    Send,
    Snapshot,
    Standing,
)


class Shard(Protocol):
    """The rows that a server holds."""

    def load(self) -> Mapping[int, Progress]:
        """Take the newest rows saved; by worker, how far it had come when the newest of them were saved."""
        ...

    def read(self, rows: Any) -> Any:
        """Current values."""
        ...

    def apply(self, worker: int, number: int, gradients: Any) -> None:
        """One optimizer step on the rows of a push."""
        ...

    def copy(self, save: int, progress: Mapping[int, Progress]) -> None:
        """Take a snapshot of what changed, and keep with it how far each worker came."""
        ...


@dataclass(slots=True)
class _Heard:
    """What is known of the worker in one place."""

    incarnation: int
    progress: Progress | None = None  # that is applied; None: none of its streams has begun here
    stable: Progress = BEGINNING  # that all servers have applied


class ServerCore:
    """One life of a server. ``handle`` takes what arrives, stream by stream in order, and gives what to send."""

    def __init__(self, member: Member, shard: Shard, view: View | None = None) -> None:
        self.member = member
        self._shard = shard
        self._view = view  # None: a replacement, which waits for Load
        self._workers: dict[int, _Heard] = {}
        self._held: Mapping[int, Progress] = {}  # by worker, what is in the rows that were loaded
        self._waiting: list[tuple[Member, Message]] = []
        self.ended = False
        if view is not None:
            self._workers = {index: _Heard(each, BEGINNING) for index, each in enumerate(view.workers)}

    @property
    def view(self) -> View | None:
        """The newest that it knows; None while it loads, and answers nobody."""
        return self._view

    def is_replaced(self, member: Member) -> bool:
        """Whether it knows of a newer worker in this one's place."""
        heard = self._workers.get(member.index)
        return heard is not None and member.incarnation < heard.incarnation

    @property
    def progress(self) -> dict[int, Progress]:
        """By worker, what its rows hold: what was applied here, or what they held when they were loaded."""
        applied = {index: heard.progress for index, heard in self._workers.items() if heard.progress is not None}
        return {**self._held, **applied}

    def handle(self, sender: Member, message: Message) -> list[Send]:
        """Take a message in."""
        if self.ended:
            return []
        match message:
            case Load(view):
                return self._load(view)
            case NewView(view):
                return list(self._adopt_view(view))
            case Snapshot(save, progress):
                self._shard.copy(save, progress)
                return [Send(CONTROLLER, Copied(save))]
        if self._view is None:
            self._waiting.append((sender, message))
            return []
        return self._from_worker(sender, message)

    def _load(self, view: View) -> list[Send]:
        self._view = view
        self._held = self._shard.load()
        self._workers = {index: _Heard(each) for index, each in enumerate(view.workers)}
        waiting, self._waiting = self._waiting, []
        answers = [send for sender, message in waiting for send in self.handle(sender, message)]
        return [Send(CONTROLLER, Loaded()), *answers]

    def _adopt_view(self, view: View) -> Iterator[Send]:
        """Take nothing more from whoever was replaced, and then say how far it came."""
        if view.replaces(self.member):
            self.ended = True  # even before it was told to begin
        if self.ended or self._view is None or view.number <= self._view.number:
            return
        self._view = view
        for index, incarnation in enumerate(view.workers):
            heard = self._workers[index]
            if incarnation > heard.incarnation:
                heard.incarnation = incarnation
                yield Send(CONTROLLER, Standing(index, incarnation, heard.progress, heard.stable))

    def _from_worker(self, sender: Member, message: Message) -> list[Send]:
        if sender.role is not Role.WORKER:
            return []
        if self.is_replaced(sender):
            return []
        heard = self._workers[sender.index]
        heard.incarnation = sender.incarnation  # a newer one is believed before the view that tells of it
        match message:
            case Hello():
                return self._begin(sender, heard, message)
            case Pull(number, rows):
                return [Send(sender, Rows(number, self._shard.read(rows)))]
            case Push():
                return self._apply(sender, heard, message)
        return []

    def _begin(self, sender: Member, heard: _Heard, hello: Hello) -> list[Send]:
        """A stream begins. A new server goes on from there, or from what its rows hold: none of that comes twice."""
        heard.stable = hello.stable
        if heard.progress is None:
            held = self._held.get(sender.index, BEGINNING)
            heard.progress = held if held.pushed > hello.progress.pushed else hello.progress
        return [Send(sender, Applied(heard.progress.pushed))]

    def _apply(self, sender: Member, heard: _Heard, push: Push) -> list[Send]:
        assert heard.progress is not None, "a push came before the hello of its stream"
        if push.number > heard.progress.pushed:
            assert push.number == heard.progress.pushed + 1, f"push {push.number} came after {heard.progress.pushed}"
            self._shard.apply(sender.index, push.number, push.gradients)
            heard.progress, heard.stable = push.progress, push.stable
        return [Send(sender, Applied(heard.progress.pushed))]
