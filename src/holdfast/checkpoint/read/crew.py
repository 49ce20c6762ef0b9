"""Threads that share a list of tasks. Lighter than futures, because a restore has many small tasks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

WORKERS = min(4, max(2, os.cpu_count() or 2))  # more than there are processors get into each other's way

Task = Callable[[], int]  # returns the bytes it has done
Progress = Callable[[int], None]  # called with bytes done


class Crew:
    """Runs tasks on a number of threads, including the caller's. The first error ends the work and is raised."""

    def __init__(self, workers: int, progress: Progress | None = None) -> None:
        self._helpers = workers - 1
        self._pool = ThreadPoolExecutor(max(1, self._helpers), thread_name_prefix="holdfast-read")
        self._progress = progress

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def together(self, work: Callable[[], None], *, limit: int) -> None:
        """Let all threads, at most ``limit``, run the same function and share its work among themselves."""
        helping = [self._pool.submit(work) for _ in range(min(self._helpers, limit - 1))]
        work()
        for helper in helping:
            helper.result()

    def count(self, done_bytes: Callable[[], int]) -> None:
        """Report progress in bytes."""
        if self._progress is not None:
            self._progress(done_bytes())

    def do(self, tasks: Iterable[Task], *, alone: bool = False) -> None:
        """Do them all; they are taken in order, one at a time. ``alone``: so small that threads would not help."""
        waiting = list(tasks)
        work = _Work(waiting, self._progress)
        helpers = 0 if alone else min(self._helpers, len(waiting) - 1)
        helping = [self._pool.submit(work.run) for _ in range(helpers)]
        work.run()
        for helper in helping:
            helper.result()
        if work.error is not None:
            raise work.error


class _Work:
    def __init__(self, tasks: Iterable[Task], progress: Progress | None) -> None:
        self._tasks = iter(tasks)
        self._progress = progress
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Take tasks until none is left, or one has failed."""
        try:
            while (task := self._next()) is not None:
                done = task()
                if self._progress is not None:
                    with self._lock:
                        self._progress(done)
        except BaseException as error:
            self.error = self.error or error

    def _next(self) -> Task | None:
        with self._lock:
            return next(self._tasks, None) if self.error is None else None
