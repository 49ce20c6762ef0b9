"""Logs long waits: for what, since when, and what is known about it."""

from __future__ import annotations

import logging

from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

TELL_EVERY_S = 30.0


class Wait:
    """One wait, from now on."""

    def __init__(self, what: str, *, runtime: Runtime = SYSTEM) -> None:
        self._what = what
        self._runtime = runtime
        self._since_s = self._told_s = runtime.monotonic_s()

    @property
    def seconds(self) -> float:
        """How long it has been waiting."""
        return self._runtime.monotonic_s() - self._since_s

    def tell(self, state: str) -> None:
        """Say so, if it has been long since the last time."""
        now_s = self._runtime.monotonic_s()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            logger.warning("still waiting for %s after %.0f s: %s", self._what, self.seconds, state)
