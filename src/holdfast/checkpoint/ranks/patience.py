"""How long a rank waits for the others, and what it says meanwhile."""

from __future__ import annotations

import logging

from holdfast.errors import RanksMissing
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

_TELL_S = 30.0  # between two warnings of one wait
_LEAST_S = 0.05


class Patience:
    """One wait for the other ranks to agree on a save."""

    def __init__(self, *, rank: int, world: int, timeout_s: float, runtime: Runtime = SYSTEM) -> None:
        self._rank = rank
        self._world = world
        self._timeout_s = timeout_s
        self._runtime = runtime
        self._started_s = runtime.monotonic_s()

    @property
    def next_s(self) -> float:
        """How long to wait now, before ``spent``."""
        return min(_TELL_S, max(_LEAST_S, self._timeout_s - self._waited_s))

    def spent(self, problem: object) -> None:
        """Say that it takes long; raises RanksMissing once it takes too long."""
        if self._waited_s >= self._timeout_s:
            raise self.missing(problem)
        logger.warning(
            "rank %d of %d has been waiting for the other ranks to agree on a save for %.0f s; it gives up after %.0f "
            "s. All ranks must call the same methods of their Checkpointer at the same steps",
            self._rank,
            self._world,
            self._waited_s,
            self._timeout_s,
        )

    def missing(self, problem: object) -> RanksMissing:
        """What to raise where there is nothing left to wait for."""
        return RanksMissing(
            f"rank {self._rank} of {self._world} waited {self._waited_s:.0f} s for the other ranks to agree on a save: "
            f"{problem}. All ranks must create the Checkpointer and call its methods at the same steps; check what the "
            "other ranks were doing. Settings(ranks_s=...) sets how long to wait"
        )

    @property
    def _waited_s(self) -> float:
        return self._runtime.monotonic_s() - self._started_s
