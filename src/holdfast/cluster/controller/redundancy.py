"""Whether every row is protected by parity, and since when not."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cluster.happenings import Redundant
from holdfast.runtime import Runtime


class Redundancy:
    """Keeps account of servers whose parities are not whole.

    Args:
        servers: How many there are.
        parity: Whether their rows are protected by parity.
        runtime: Clock.
    """

    def __init__(self, *, servers: int, parity: bool, runtime: Runtime) -> None:
        self._runtime = runtime
        self._servers = frozenset(range(servers) if parity else ())
        self._bare = set(self._servers)
        self._bare_s = runtime.monotonic_s()  # since when
        self._encoded = 0

    def lay_bare(self, server: int | None = None) -> None:
        """A server lost the parities that it kept, or all of them did."""
        if not self._bare:
            self._bare_s = self._runtime.monotonic_s()
        self._bare |= self._servers if server is None else self._servers & {server}

    def protected(self, server: int, records: int) -> Iterator[Redundant]:
        """The parities that a server keeps are whole."""
        self._encoded += records
        self._bare.discard(server)
        if not self._bare:
            took_s = self._runtime.monotonic_s() - self._bare_s
            yield Redundant(records=self._encoded, at_s=self._runtime.wall_s(), took_s=took_s)
            self._encoded = 0
