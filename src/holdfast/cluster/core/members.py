"""Who takes part in a job, as which incarnation, and the numbered views that say so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Role(Enum):
    """What a process does in a job.

    Attributes:
        SERVER: Holds shards of tables; applies pushes to them.
        WORKER: Computes gradients: pulls rows, pushes their gradients.
        CONTROLLER: Starts the others, hears of their deaths, publishes views.
    """

    SERVER = "server"
    WORKER = "worker"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Member:
    """One life of a process: its place in the job, and which of the processes in that place it is."""

    role: Role
    index: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.role.value} {self.index} ({self.incarnation})"


CONTROLLER = Member(Role.CONTROLLER, 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Who is alive, by incarnation. Each death makes a new one, and a message of an older incarnation is dropped."""

    number: int
    servers: tuple[int, ...]
    workers: tuple[int, ...]

    @classmethod
    def first(cls, *, servers: int, workers: int) -> View:
        """Everyone in the first incarnation."""
        return cls(number=1, servers=(1,) * servers, workers=(1,) * workers)

    def incarnation(self, role: Role, index: int) -> int:
        """Of whoever is in this place."""
        return (self.servers if role is Role.SERVER else self.workers)[index]

    def member(self, role: Role, index: int) -> Member:
        """Whoever is in this place."""
        return Member(role, index, self.incarnation(role, index))

    def holds(self, member: Member) -> bool:
        """Whether this is the one in its place; the controller always is."""
        return member.role is Role.CONTROLLER or (
            self._has_place(member) and self.incarnation(member.role, member.index) == member.incarnation
        )

    def replaces(self, member: Member) -> bool:
        """Whether a newer one is in its place, or the place is gone."""
        return member.role is not Role.CONTROLLER and (
            not self._has_place(member) or self.incarnation(member.role, member.index) > member.incarnation
        )

    @property
    def members(self) -> tuple[Member, ...]:
        """All servers, then all workers."""
        servers = (Member(Role.SERVER, index, each) for index, each in enumerate(self.servers))
        return (*servers, *(Member(Role.WORKER, index, each) for index, each in enumerate(self.workers)))

    def replacing(self, member: Member) -> View:
        """The next view, in which another process takes a member's place."""
        places = list(self.servers if member.role is Role.SERVER else self.workers)
        places[member.index] += 1
        changed = tuple(places)
        if member.role is Role.SERVER:
            return replace(self, number=self.number + 1, servers=changed)
        return replace(self, number=self.number + 1, workers=changed)

    def replacing_all(self, workers: tuple[int, ...] | None = None) -> View:
        """The next view, in which everyone is the next incarnation; ``workers`` where their number changes too."""
        return View(
            number=self.number + 1,
            servers=tuple(each + 1 for each in self.servers),
            workers=tuple(each + 1 for each in self.workers) if workers is None else workers,
        )

    def _has_place(self, member: Member) -> bool:
        return member.index < len(self.servers if member.role is Role.SERVER else self.workers)
