"""A snapshot that is taken and not yet sealed: it leaves its device while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.checkpoint.trainer.announcement import Announcement
from holdfast.runtime import SYSTEM, Runtime


class Drain(Protocol):
    """Empties the buffers of devices into frames."""

    def advance(self, *, wait: bool = False) -> bool:
        """Do what can be done without waiting; whether everything is handed over. ``wait``: do all of it."""
        ...

    @property
    def rushed_s(self) -> float | None:
        """How long an optimizer's step waited until everything was read that it would have moved; None: none did."""
        ...

    def abandon(self) -> None:
        """Give the snapshot up, and its frames back."""
        ...

    def wait(self) -> None:
        """Until no device copies into a frame any more."""
        ...


class Unsealed:
    """Sealed by the training thread, in the step that finds all its frames handed over."""

    def __init__(
        self,
        announcement: Announcement,
        drain: Drain,
        *,
        stall_s: float,
        sealed: Callable[[float, float], None],
        runtime: Runtime = SYSTEM,
    ) -> None:
        """``stall_s``: what training has waited for it so far; ``sealed`` is told that, and how long it drained."""
        self._announcement = announcement
        self._drain = drain
        self._stall_s = stall_s
        self._sealed = sealed
        self._runtime = runtime
        self._since_s = runtime.monotonic_s()

    def advance(self, *, wait: bool = False) -> bool:
        """Go on without waiting, unless told to; whether it is sealed. Raises AgentDied."""
        started_s = self._runtime.monotonic_s()
        complete = self._drain.advance(wait=wait)
        now_s = self._runtime.monotonic_s()
        if not wait:  # else somebody waits for the save, not training for its snapshot
            self._stall_s += now_s - started_s
        if complete:
            stall_s = self._stall_s + (self._drain.rushed_s or 0.0)
            self._announcement.client.seal(self._announcement.make().full_bytes, stall_s)
            self._sealed(stall_s, now_s - self._since_s)
        return complete

    def abandon(self) -> None:
        """Give it up; the agent hears of it and reports its end."""
        self._drain.abandon()
        self._announcement.withdraw()

    def forget(self) -> None:
        """Its agent is gone: leave its frames to the next one, once nothing is copied to them."""
        self._drain.wait()
