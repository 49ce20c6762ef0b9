"""Threads that share a list of tasks. Lighter than futures: a restore has many small ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

Task = Callable[[], int]  # returns the bytes it has done
Progress = Callable[[int], None]  # called with bytes done


class Crew:
    """Does tasks with so many threads, the caller's among them. The first error ends the work and is raised."""

    def __init__(self, workers: int, progress: Progress | None = None) -> None:
        self._workers = workers
        self._progress = progress

    def do(self, tasks: Iterable[Task]) -> None:
        """Do them all; they are taken from ``tasks`` in order, one at a time."""
        work = _Work(tasks, self._progress)
        threads = [
            threading.Thread(target=work.run, name=f"holdfast-read-{number}", daemon=True)
            for number in range(1, self._workers)
        ]
        for thread in threads:
            thread.start()
        work.run()
        for thread in threads:
            thread.join()
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
