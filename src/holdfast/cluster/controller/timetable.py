"""When a job saves: by the policies that a Checkpointer uses."""

from __future__ import annotations

from holdfast.policy import SaveContext, SavePolicy
from holdfast.runtime import Runtime


class Timetable:
    """Asks one policy. A save that could not be taken stays due.

    Args:
        policy: When to save; None: never.
        step: Where the training begins.
        runtime: Clock.
    """

    def __init__(self, policy: SavePolicy | None, step: int, runtime: Runtime) -> None:
        self._policy = policy
        self._runtime = runtime
        self._last_step = step
        self._last_s = runtime.monotonic_s()

    def is_due(self, step: int) -> bool:
        """Whether to save now, at this step."""
        if self._policy is None:
            return False
        now_s = self._runtime.monotonic_s()
        context = SaveContext(step=step, now_s=now_s, last_save_step=self._last_step, last_save_s=self._last_s)
        return self._policy.due(context)

    def took(self, step: int) -> None:
        """A save was taken, or a checkpoint was gone back to."""
        self._last_step, self._last_s = step, self._runtime.monotonic_s()
