"""When a server asks for the next block of what parities give, or lack, and nobody waits for."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime import SYSTEM, Runtime

_FAST_ASKED = 32  # questions at once: a block of rows takes one, a block of parities one for each member
_REST = 3.0  # times as long as a block took: so much of the time is training's alone


@dataclass(slots=True)
class RebuildPace:
    """Gently: one block at a time, then a rest in proportion to what it took. Fast: as many as keep everyone busy.

    Args:
        is_fast: Which of the two.
        runtime: Clock.
    """

    is_fast: bool
    runtime: Runtime = SYSTEM
    is_urgent: bool = False  # rows wait until all that parities give is there
    _asked_s: float | None = None  # when the block that is under way was asked for
    _next_s: float = 0.0

    def may_ask(self, asked: int) -> bool:
        """Whether it is time for another block, while so many questions are not answered."""
        if self.is_fast or self.is_urgent:
            return asked < _FAST_ASKED
        now_s = self.runtime.monotonic_s()
        if self._asked_s is not None and not asked:
            self._next_s = now_s + _REST * (now_s - self._asked_s)
            self._asked_s = None
        return not asked and now_s >= self._next_s

    def asks(self) -> None:
        """A block is asked for."""
        self._asked_s = self.runtime.monotonic_s()

    def patience_s(self, most_s: float) -> float:
        """How long to wait for messages before the next block may be due."""
        if self._asked_s is not None:
            return most_s
        return min(most_s, max(self._next_s - self.runtime.monotonic_s(), 0.0))
