"""What a launcher promises: it starts processes, tells of their death, kills them, and leaves none behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from holdfast.cluster.core.members import Member, Role

CLOSE_S = 5.0
"""How long ``close`` waits for processes that were asked to end."""


@dataclass(frozen=True, slots=True)
class Spare:
    """A process that waits for a place: it is up when somebody dies."""

    role: Role
    number: int

    def __str__(self) -> str:
        return f"spare {self.role.value} {self.number}"


Tenant: TypeAlias = Member | Spare


def label(tenant: Tenant) -> str:
    """Its name in the names of files and processes."""
    if isinstance(tenant, Spare):
        return f"spare-{tenant.role.value}-{tenant.number}"
    return f"{tenant.role.value}-{tenant.index}.{tenant.incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a process finds itself: the second argument of its target, beside the payload."""

    host: str  # the address that others reach it by: what its sockets bind to
    orphaned_fd: int  # readable, or hung up, once whoever started it is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a process, expected or not."""

    tenant: Tenant
    how: str  # "exit code 1", "killed by SIGKILL", in Ray's words
    exit_code: int | None  # None: it was killed, or nobody knows
    last_words: str = ""  # the end of its traceback, or of its log

    @property
    def is_return(self) -> bool:
        """Whether its target returned."""
        return self.exit_code == 0

    def __str__(self) -> str:
        return f"{self.tenant}: {self.how}" + (f"\n{self.last_words}" if self.last_words else "")


class Launcher(Protocol):
    """Starts the processes of a job. One thread uses it.

    A process calls ``target(payload, surroundings)``. It lives until the target returns or raises, until it is
    killed, or until the machine dies; it is never restarted. It outlives whoever started it, if it wants to: its
    ``orphaned_fd`` tells it.
    """

    @property
    def host(self) -> str:
        """The address by which all processes reach this one: what the controller's sockets bind to."""
        ...

    def start(self, tenant: Tenant, target: str, payload: bytes) -> None:
        """Start a process, and return before it is up.

        ``target`` is a name by ``functions.import_name``. The payload may be large and secret: it shows neither in
        a command line nor in an environment. One that cannot be started raises ``RunError``; one that cannot import
        its target dies, and its last words say why.
        """
        ...

    def lacks(self, role: Role, count: int) -> str:
        """What is missing for so many more processes of a role, as far as is known now; empty: nothing."""
        ...

    def adopt(self, spare: Spare, member: Member) -> None:
        """From now on the process of this spare is known as a member. One that died is told of as the spare."""
        ...

    def deaths(self) -> list[Death]:
        """Those that ended since the last call, each once. Returns at once."""
        ...

    def fileno(self) -> int:
        """Readable while ``deaths`` has something to tell."""
        ...

    def kill(self, tenant: Tenant) -> None:
        """End a process, even a stopped one; no-op for one that is gone. Its death is told of like any other.

        Its helpers end with it, as far as the launcher reaches them; its agent does not.
        """
        ...

    def machines(self, role: Role, count: int) -> list[str]:
        """The names of the machines on which the first so many processes of a role will run, in their order."""
        ...

    def free_bytes(self) -> Mapping[str, int]:
        """Memory that is free for processes of the job, by machine: of those machines where that is known."""
        ...

    def domain(self, tenant: Tenant) -> str:
        """What a process fails together with: the name of its machine. Waits until that is known."""
        ...

    def close(self, *, grace_s: float = CLOSE_S) -> None:
        """Wait for those that are ending, then kill the rest; may be called again.

        When it returns none runs anything more, and no port is left as soon as the system has cleaned up behind them.
        Agents are not touched: they end when they have committed.
        """
        ...


class Launching(Protocol):
    """How a user says which launcher a job uses: a plain value that opens one."""

    def open(self, *, servers: int, workers: int, spares: int = 0) -> Launcher:
        """Prepare places for these many processes; more may be started later, wherever there is room."""
        ...
