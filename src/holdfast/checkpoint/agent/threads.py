"""The agent's threads: a few that write frames, and one that finishes saves and makes every other change to the run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec

P = ParamSpec("P")


class AgentThreads:
    """What is no Exception ends the whole agent, not the thread alone that met it: ``on_fatal`` is called."""

    def __init__(self, *, uploads: int, on_fatal: Callable[[], None]) -> None:
        self._frames = ThreadPoolExecutor(uploads, thread_name_prefix="holdfast-write")
        # Owns the chain: one save at a time. With a single upload everything happens in turn, on one thread.
        self._finisher = self._frames if uploads == 1 else ThreadPoolExecutor(1, thread_name_prefix="holdfast-commit")
        self._on_fatal = on_fatal
        self._fatal: BaseException | None = None

    def write(self, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> Future[None]:
        """Run it concurrently with other writes."""
        return self._frames.submit(self._work, partial(act, *args, **kwargs))

    def finish(self, act: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> Future[None]:
        """Do it on the thread that owns the chain, when its turn comes. RuntimeError after ``close`` has begun."""
        return self._finisher.submit(self._work, partial(act, *args, **kwargs))

    def close(self) -> None:
        """Wait for all that was handed over."""
        self._frames.shutdown(wait=True)
        self._finisher.shutdown(wait=True)

    def raise_fatal(self) -> None:
        """Raise what ended a thread, if it was no Exception."""
        if self._fatal is not None:
            raise self._fatal

    def _work(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:
            raise
        except BaseException as error:
            self._fatal = self._fatal or error
            self._on_fatal()
            raise
