"""The controller: replaces whoever died, publishes views, finds out where a new worker goes on, and leads saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import (
    BEGINNING,
    Broken,
    Copied,
    GoOn,
    Load,
    Loaded,
    Message,
    NewView,
    Pause,
    Paused,
    Progress,
    Send,
    Snapshot,
    Standing,
    Start,
)


@dataclass(frozen=True, slots=True)
class Replace:
    """An output: start a process that is to be this member."""

    member: Member


@dataclass(frozen=True, slots=True)
class Fence:
    """An output: whatever is left of this member must end."""

    member: Member


@dataclass(frozen=True, slots=True)
class Saved:
    """An output: every server has its part of a save; the checkpoint may be committed."""

    save: int
    progress: Mapping[int, Progress]


Output: TypeAlias = Send | Replace | Fence | Saved


@dataclass(slots=True)
class _Inquest:
    """How far a worker that died had come, server by server."""

    replacement: Member
    asked: set[Member]
    found: dict[int, Progress] = field(default_factory=dict)  # by server
    stable: Progress = BEGINNING

    def conclusion(self, servers: int) -> Progress:
        """Where its replacement goes on: behind the last push that every server has applied.

        Those that have applied more skip what comes again. A server that died as well, and is new, may have applied
        no more than what its predecessor was known to have applied by all the others.
        """
        known = list(self.found.values())
        unknown = [self.stable] if len(known) < servers else []
        return min((*known, *unknown), key=lambda each: each.pushed)


@dataclass(slots=True)
class _Save:
    """A save under way."""

    number: int
    paused: dict[int, Progress] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)


class ControllerCore:
    """The only one that decides who is alive. ``handle`` takes what members say, ``died`` what a launcher saw."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._up: set[Member] = set()  # processes that run, told of their view or not
        self._told: set[Member] = set()  # members that were given a view to begin with
        self._loading: set[Member] = set()
        self._inquests: dict[int, _Inquest] = {}
        self._starts: dict[int, Progress] = dict.fromkeys(range(len(view.workers)), BEGINNING)  # not started yet
        self._saved: Mapping[int, Progress] = {}
        self._saves = 0
        self._save: _Save | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every member is at work."""
        return not (self._loading or self._inquests or self._starts) and self._told.issuperset(self.view.members)

    @property
    def is_saving(self) -> bool:
        """Whether a save is under way."""
        return self._save is not None

    def up(self, member: Member) -> list[Output]:
        """A process runs, as this member."""
        if not self.view.holds(member):
            return [Fence(member)]
        self._up.add(member)
        if member.role is Role.WORKER:
            return list(self._start(member.index))
        self._told.add(member)
        if member.incarnation == 1:  # it was made with the first view, and has nothing to load
            return [Send(member, NewView(self.view)), *self._start_all()]
        self._loading.add(member)
        return [Send(member, Load(self.view))]

    def died(self, member: Member) -> list[Output]:
        """A process ended, stopped answering, or lost frames: another takes its place."""
        if not self.view.holds(member):
            return []
        self._save = None
        self.view = self.view.replacing(member)
        for known in (self._up, self._told, self._loading):
            known.discard(member)
        replacement = self.view.member(member.role, member.index)
        # It may live, unreachable for now: the view ends it when it wakes.
        outputs: list[Output] = [Fence(member), Replace(replacement), Send(member, NewView(self.view))]
        outputs.extend(Send(each, NewView(self.view)) for each in self._listeners())
        if member.role is Role.WORKER:
            self._starts.pop(member.index, None)
            asked = {each for each in self._told if each.role is Role.SERVER}
            saved = self._saved.get(member.index, BEGINNING)
            self._inquests[member.index] = _Inquest(replacement, asked, stable=saved)
        for inquest in list(self._inquests.values()):
            if member.role is Role.SERVER:
                inquest.found.pop(member.index, None)
            inquest.asked.discard(member)
            outputs.extend(self._conclude(inquest))
        return [*outputs, *self._start_all()]

    def save(self) -> list[Output]:
        """Begin a save, unless one is under way or somebody is missing."""
        if self._save is not None or not self.is_whole:
            return []
        self._saves += 1
        self._save = _Save(self._saves)
        return [Send(each, Pause(self._saves)) for each in self._members(Role.WORKER)]

    def handle(self, sender: Member, message: Message) -> list[Output]:
        """Take a message in."""
        if not self.view.holds(sender):
            return []
        match message:
            case Broken(member):
                return self.died(member)
            case Loaded():
                self._loading.discard(sender)
            case Standing():
                return list(self._heard(sender, message))
            case Paused():
                return list(self._paused(sender, message))
            case Copied():
                return list(self._copied(sender, message))
        return []

    def _heard(self, sender: Member, standing: Standing) -> Iterator[Output]:
        inquest = self._inquests.get(standing.worker)
        if inquest is None or inquest.replacement.incarnation != standing.incarnation:
            return
        if standing.progress is not None:
            inquest.found[sender.index] = standing.progress
        inquest.stable = max(inquest.stable, standing.stable, key=lambda each: each.pushed)
        inquest.asked.discard(sender)
        yield from self._conclude(inquest)

    def _conclude(self, inquest: _Inquest) -> Iterator[Output]:
        worker = inquest.replacement.index
        if inquest.asked or worker not in self._inquests:
            return
        del self._inquests[worker]
        self._starts[worker] = inquest.conclusion(len(self.view.servers))
        yield from self._start(worker)

    def _start_all(self) -> Iterator[Output]:
        for worker in list(self._starts):
            yield from self._start(worker)

    def _start(self, worker: int) -> Iterator[Output]:
        """Start a worker once its process runs and it is known where it goes on.

        No push must reach a server of the first incarnation before deaths are told to it.
        """
        if any(each.incarnation == 1 and each not in self._told for each in self._members(Role.SERVER)):
            return
        member = self.view.member(Role.WORKER, worker)
        if member in self._up and worker in self._starts:
            self._told.add(member)
            yield Send(member, Start(self.view, self._starts.pop(worker)))

    def _paused(self, sender: Member, paused: Paused) -> Iterator[Output]:
        save = self._save
        if save is None or save.number != paused.save:
            return
        save.paused[sender.index] = paused.progress
        if len(save.paused) == len(self.view.workers) and not save.copied:
            for server in self._members(Role.SERVER):
                yield Send(server, Snapshot(save.number, dict(save.paused)))

    def _copied(self, sender: Member, copied: Copied) -> Iterator[Output]:
        save = self._save
        if save is None or save.number != copied.save:
            return
        save.copied.add(sender.index)
        if len(save.copied) < len(self.view.servers):
            return
        self._save, self._saved = None, save.paused
        yield Saved(save.number, save.paused)
        for worker in self._members(Role.WORKER):
            yield Send(worker, GoOn(save.number))

    def _listeners(self) -> Iterable[Member]:
        return sorted(self._told, key=lambda each: (each.role.value, each.index))

    def _members(self, role: Role) -> Iterator[Member]:
        return (member for member in self.view.members if member.role is role)
