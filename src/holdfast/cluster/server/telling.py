"""When a server tells hosts of what it has applied: of several pushes at once, unless no more of them come."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.runtime import SYSTEM, Runtime

TOGETHER = 4  # most pushes of a worker, which has credits for twice as many
_IDLE_S = 0.1  # without another push


@dataclass(slots=True)
class Telling:
    """Nobody waits for a difference while pushes keep coming: workers have credits for more of them.

    A row that several pushes change is sent once, and so is the dense part. Where no push comes any more, because
    workers pause, or have ended, hosts are told of the last ones after a moment.

    Args:
        runtime: Clock.
    """

    runtime: Runtime = SYSTEM
    _untold: int = 0  # when it was last looked
    _since_s: float | None = None  # since when there are so many; None: there are none

    def is_due(self, untold: int) -> bool:
        """Whether it is time to tell, while there are so many pushes that hosts do not know of."""
        if untold != self._untold:
            self._untold = untold
            self._since_s = self.runtime.monotonic_s() if untold else None
        return self._since_s is not None and self._left_s(self._since_s) <= 0

    def patience_s(self, most_s: float) -> float:
        """How long to wait for messages before it may be."""
        return most_s if self._since_s is None else min(most_s, max(self._left_s(self._since_s), 0.0))

    def _left_s(self, since_s: float) -> float:
        return since_s + _IDLE_S - self.runtime.monotonic_s()
