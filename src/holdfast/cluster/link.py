"""One life of a process in a job: its streams, its heartbeat, and how it learns that nobody counts on it any more."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Message, Send
from holdfast.cluster.core.notes import Up
from holdfast.cluster.job import Job
from holdfast.cluster.launch.base import Surroundings
from holdfast.cluster.process_name import name_process
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.cluster.wire.heartbeat import Heartbeat
from holdfast.runtime import SYSTEM

_HEIR_S = 300.0  # that an heir may take for the last save
_PATIENCE_S = 0.1  # between two looks at whether the controller is still there


class Link:
    """Connects one member to all others. Closing it ends the life, not the process.

    Args:
        job: What the process was told.
        member: Who it is in this life.
        surroundings: Of the process.
    """

    def __init__(self, job: Job, member: Member, surroundings: Surroundings) -> None:
        name_process(member)
        contacts, pacing = job.contacts, job.pacing
        self.member = member
        self._orphaned_fd = surroundings.orphaned_fd
        self._silence_s = pacing.silence_s
        self._orphaned_s: float | None = None
        self._endpoint = Endpoint(
            member,
            contacts.credentials,
            f"tcp://{surroundings.host}:*",
            io_threads=io_threads(member.role, has_parity=bool(job.rings)),
        )
        self._endpoint.connect(CONTROLLER, contacts.controller)
        self._heartbeat = Heartbeat(member, self._endpoint.sockets, contacts.beats, period_s=pacing.beat_s)
        self._endpoint.send(CONTROLLER, Up())

    @property
    def is_dismissed(self) -> bool:
        """Whether the controller lives and has replaced this member."""
        return self._heartbeat.is_dismissed

    @property
    def is_orphaned(self) -> bool:
        """Whether the controller is lost: its process ended, or it was silent for too long.

        It is so for the rest of this life. A controller that is heard again may have replaced others meanwhile, and
        some of them follow an heir by now: it has to replace this one, too.
        """
        return self._orphaned_s is not None

    @property
    def is_forsaken(self) -> bool:
        """Whether it has been an orphan for so long that no heir will end it."""
        return self._orphaned_s is not None and SYSTEM.monotonic_s() - self._orphaned_s > _HEIR_S

    def send(self, sends: Iterable[Send]) -> None:
        """Never blocks."""
        for each in sends:
            self._endpoint.send(each.to, each.message)

    def receive(self, timeout_s: float, also: Sequence[int] = ()) -> list[tuple[Member, Message]]:
        """What has arrived; waits for something, for so long at most."""
        if self._heartbeat.controller_silent_s > self._silence_s:
            self._lose_controller()
        arrived = self._endpoint.receive(0.0)
        if arrived or timeout_s == 0.0:
            return arrived
        watched = also if self.is_orphaned else (self._orphaned_fd, *also)
        if self._orphaned_fd in self._endpoint.wait(timeout_s, watched):
            self._lose_controller()
        return self._endpoint.receive(0.0)

    def await_replacement(self) -> None:
        """Do nothing more until the controller has put another in this member's place, or is gone itself.

        A process that ends by itself while it is counted on says that the controller was taken for dead.
        """
        while not (self.is_dismissed or self.is_orphaned):
            self.receive(_PATIENCE_S)

    def adopt(self, view: View) -> None:
        """Send nothing more to whoever is replaced in this view."""
        self._endpoint.disconnect_replaced(view)

    def close(self) -> None:
        """End the heartbeat; let what was sent get out."""
        self._heartbeat.close()
        self._endpoint.close()

    def _lose_controller(self) -> None:
        if self._orphaned_s is None:
            self._orphaned_s = SYSTEM.monotonic_s()
            self._heartbeat.is_orphan = True


def io_threads(role: Role, *, has_parity: bool) -> int:
    """How many threads of a process move bytes.

    A worker moves what all servers together do: as much as one thread can, with a model of a few megabytes. Beside
    rows and gradients, a server with parity sends and receives a record for each row: twice as much again.

    Args:
        role: Of the process.
        has_parity: Whether the job has parity.
    """
    if role is Role.WORKER:
        return max(1, min(4, _cores() // 4))
    return max(1, min(2, _cores() // 6)) if has_parity else 1


def compute_threads(together: int) -> int:
    """How many threads of a server share the work on a large block of rows.

    All servers of a machine move rows when those of one come back. With more threads than cores, most of the time
    goes into waking them.

    Args:
        together: The most servers that share a machine.
    """
    return max(1, min(4, _cores() // (4 * together)))


def can_read_beside(together: int) -> bool:
    """Whether a server has a core for a thread that reads rows, beside its own thread and those of its sockets.

    Args:
        together: The most servers that share a machine, all of which are busy.
    """
    return _cores() >= 3 * together


def _cores() -> int:
    return len(os.sched_getaffinity(0))
