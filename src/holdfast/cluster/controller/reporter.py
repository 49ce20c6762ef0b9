"""Tells the user's function how the job goes, every few seconds."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.audience import Hook
from holdfast.cluster.progress import Progress
from holdfast.runtime import SYSTEM, Runtime

_BETWEEN_S = 5.0  # two calls: as long as rates are taken over


class Reporter:
    """Calls the function, if there is one, when it is time to.

    Args:
        accounts: Where figures come from.
        function: The user's.
        runtime: Clock.
    """

    def __init__(
        self, accounts: Accounts, function: Callable[[Progress], object] | None, *, runtime: Runtime = SYSTEM
    ) -> None:
        self._accounts = accounts
        self._hook = Hook("on_progress", function) if function is not None else None
        self._runtime = runtime
        self._told_s = runtime.monotonic_s()

    def turn(self) -> None:
        """Tell, if it is time to."""
        now_s = self._runtime.monotonic_s()
        if self._hook is not None and now_s - self._told_s >= _BETWEEN_S:
            self._told_s = now_s
            self._hook.call(self._progress(now_s))

    def _progress(self, now_s: float) -> Progress:
        standing = self._accounts.standing
        return Progress(
            step=self._accounts.step,
            samples_per_s=standing.samples_per_s(now_s),
            rows_per_s=standing.rows_per_s(now_s),
            behind=standing.most_behind,
            loss=standing.mean_loss,
            pls=self._accounts.pls,
            at_s=self._runtime.wall_s(),
        )
