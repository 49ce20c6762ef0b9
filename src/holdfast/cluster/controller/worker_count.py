"""How many workers a job has, and the change of that which was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.cluster.happenings import Event, Resized, ResizeFailed
from holdfast.errors import RunError
from holdfast.runtime import SYSTEM, Runtime


class WorkerCount:
    """Any thread may ask for a change; the rest is for the controller's. One change at a time is under way.

    Args:
        workers: How many the job begins with.
        tell: Hears what becomes of changes.
        runtime: Clock.
    """

    def __init__(self, workers: int, tell: Callable[[Event], object], runtime: Runtime = SYSTEM) -> None:
        self._count = self._before = workers
        self._tell = tell
        self._runtime = runtime
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._asked_s = 0.0
        self._is_taken = False  # the controller knows of it
        self._is_over = False

    @property
    def workers(self) -> int:
        """How many there are, or will be behind the change that is under way."""
        with self._lock:
            return self._count

    def ask(self, workers: int) -> None:
        """Change to this number; nothing happens where that is the number already."""
        with self._lock:
            if self._is_over:
                raise RunError("the job has ended; pass workers=... to the Cluster that goes on with its run")
            if self._wanted is not None:
                raise RunError(
                    f"a change to {self._wanted} workers is under way; wait for its Resized or ResizeFailed event"
                )
            if workers != self._count:
                self._wanted, self._asked_s, self._is_taken = workers, self._runtime.monotonic_s(), False

    def take(self) -> int | None:
        """What was asked for, once."""
        with self._lock:
            if self._wanted is None or self._is_taken:
                return None
            self._is_taken = True
            return self._wanted

    def changed(self, workers: int) -> None:
        """A checkpoint is taken behind which there are so many, once all are at work."""
        with self._lock:
            self._before, self._count = self._count, workers

    def settled(self) -> None:
        """Everyone is at work."""
        with self._lock:
            if self._wanted is None or self._wanted != self._count:
                return
            self._wanted = None
            took_s = self._runtime.monotonic_s() - self._asked_s
        at_s = self._runtime.wall_s()
        self._tell(Resized(workers=self._count, before=self._before, at_s=at_s, took_s=took_s))

    def failed(self, workers: int, problem: str) -> None:
        """Their number stays as it is."""
        with self._lock:
            self._wanted = None
        self._tell(ResizeFailed(workers=workers, problem=problem, at_s=self._runtime.wall_s()))

    def close(self) -> None:
        """The job is over."""
        with self._lock:
            self._is_over = True
