"""Which rung of the ladder made up for a death, and whether every row is protected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import FULL, PARITY, PARTIAL, Recovered, Redundant
from holdfast.runtime import Runtime


@dataclass(slots=True)
class _Recovery:
    died_s: float
    rows: int = 0
    saved_rows: int = 0


class Rungs:
    """Keeps the books of servers that died.

    Args:
        servers: How many there are.
        parity: Whether their rows are protected by parity.
        runtime: Clock.
    """

    def __init__(self, *, servers: int, parity: bool, runtime: Runtime) -> None:
        self._runtime = runtime
        self._has_parity = parity
        self._servers = frozenset(range(servers))
        self._open: dict[int, tuple[Member, _Recovery]] = {}  # by server
        self._went_back = False
        self._bare = set(self._servers) if parity else set()  # servers whose parities are not whole
        self._bare_s = runtime.monotonic_s()  # since when
        self._encoded = 0

    def began(self, member: Member) -> None:
        """This one takes the place of a server that died."""
        if member.role is not Role.SERVER:
            return
        now_s = self._runtime.monotonic_s()
        before = self._open.get(member.index)
        self._open[member.index] = member, _Recovery(before[1].died_s if before is not None else now_s)
        self._lay_bare({member.index})

    def went_back(self) -> None:
        """Everyone goes back: parities are made anew."""
        self._went_back = True
        self._lay_bare(self._servers)

    def restored(self, server: Member, rows: int, saved_rows: int) -> None:
        """A server has its rows again."""
        if server.index in self._open:
            recovery = self._open[server.index][1]
            recovery.rows, recovery.saved_rows = rows - saved_rows, saved_rows

    def protected(self, server: Member, records: int) -> Iterator[Redundant]:
        """The parities that a server keeps are whole."""
        self._encoded += records
        self._bare.discard(server.index)
        if not self._bare:
            took_s = self._runtime.monotonic_s() - self._bare_s
            yield Redundant(records=self._encoded, at_s=self._runtime.wall_s(), took_s=took_s)
            self._encoded = 0

    def whole(self) -> Iterator[Recovered]:
        """Everyone is at work."""
        now_s, at_s = self._runtime.monotonic_s(), self._runtime.wall_s()
        for member, each in self._open.values():
            rung = FULL if self._went_back else PARITY if self._has_parity and not each.saved_rows else PARTIAL
            yield Recovered(
                member=member,
                rung=rung,
                rows=each.rows,
                saved_rows=each.saved_rows,
                at_s=at_s,
                took_s=now_s - each.died_s,
            )
        self._open.clear()
        self._went_back = False

    def _lay_bare(self, servers: frozenset[int] | set[int]) -> None:
        if not self._has_parity:
            return
        if not self._bare:
            self._bare_s = self._runtime.monotonic_s()
        self._bare |= servers
