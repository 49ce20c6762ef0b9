"""Since when not every row is protected by parity."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cluster.happenings import Redundant
from holdfast.runtime import Runtime


class Redundancy:
    """Keeps account of how long rows lack parities.

    Args:
        runtime: Clock.
    """

    def __init__(self, *, runtime: Runtime) -> None:
        self._runtime = runtime
        self._bare_s: float | None = runtime.monotonic_s()  # None while every row is protected

    def lay_bare(self) -> None:
        """A server lost the parities that it kept, or all of them did."""
        if self._bare_s is None:
            self._bare_s = self._runtime.monotonic_s()

    def protected(self, records: int) -> Iterator[Redundant]:
        """Every row is protected; so many parities were encoded for it."""
        if self._bare_s is not None:
            took_s = self._runtime.monotonic_s() - self._bare_s
            yield Redundant(records=records, at_s=self._runtime.wall_s(), took_s=took_s)
        self._bare_s = None
