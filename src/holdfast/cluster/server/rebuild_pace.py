"""When a server asks for the next block of what parities give, or lack, and nobody waits for."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime import SYSTEM, Runtime

FAST_ASKED = 24  # questions at once: a block of rows takes one, a block of parities one for each member
_GENTLE_ASKED = 4  # so that whoever is slow to answer is not asked ever more
_REST = 99.0  # times as long as answers took to handle: 0.01 of a server's time is the rebuild's


@dataclass(slots=True)
class RebuildPace:
    """Gently: blocks that take a small share of this server's time. Fast: as many as keep everyone busy.

    The share is that of the work which answers make here, not of the time until they come: members and hosts, which
    take turns, work about as long for a block as the server that asks for it. What pulls and pushes wait for does not
    count, neither as work nor as questions: otherwise a server whose rows are in demand would never come to the rest.

    Args:
        is_fast: Which of the two.
        runtime: Clock.
    """

    is_fast: bool
    runtime: Runtime = SYSTEM
    is_urgent: bool = False  # somebody waits until all that parities give is there
    has_asked_all: bool = False  # there is no block to ask for until something is heard
    _next_s: float = 0.0

    def may_ask(self, asked: int) -> bool:
        """Whether it is time for another block, while so many questions for blocks are not answered."""
        if self.is_fast or self.is_urgent:
            return asked < FAST_ASKED
        return asked < _GENTLE_ASKED and self.runtime.monotonic_s() >= self._next_s

    def worked(self, seconds: float) -> None:
        """So long an answer to such a question took to handle."""
        self._next_s = max(self._next_s, self.runtime.monotonic_s()) + _REST * seconds

    def patience_s(self, most_s: float, asked: int) -> float:
        """How long to wait for messages before the next block may be due, while so many questions are not answered."""
        if self.is_fast or self.is_urgent or self.has_asked_all or asked >= _GENTLE_ASKED:
            return most_s
        return min(most_s, max(self._next_s - self.runtime.monotonic_s(), 0.0))
