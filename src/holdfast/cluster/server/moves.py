"""Rows and parities on their way from messages into arrays, while the server's own thread handles other messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, Self

Arguments = ParamSpec("Arguments")

_MOST = 16  # blocks that keep their memory: with more of them under way, whoever brings another waits


@dataclass(frozen=True, slots=True)
class Movers:
    """Threads that move what comes to rows, and to parities: neither waits for the other."""

    of_rows: ThreadPoolExecutor
    of_parities: ThreadPoolExecutor

    @classmethod
    def started(cls) -> Self:
        """Before there is anything to move: on a busy machine, it takes a while until a new thread runs."""
        return cls(_started(), _started())

    def close(self) -> None:
        """Let what was begun end, and the threads."""
        self.of_rows.shutdown()
        self.of_parities.shutdown()


def _started() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-moves")
    pool.submit(int)
    return pool


class Moves:
    """What is written to arrays, in its order, one after another.

    Whoever reads these arrays, or writes to them, waits first: nobody sees a row before it is there.

    Args:
        mover: A thread that moves. None: all is moved when ``begin`` returns.
    """

    def __init__(self, mover: ThreadPoolExecutor | None = None) -> None:
        self._mover = mover
        self._under_way: deque[Future[None]] = deque()

    def begin(self, move: Callable[Arguments, None], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Move something, behind all that was begun before. What it raises, ``wait`` does."""
        if self._mover is None:
            move(*args, **kwargs)
            return
        while len(self._under_way) >= _MOST:
            self._under_way.popleft().result()
        self._under_way.append(self._mover.submit(move, *args, **kwargs))

    def follow(self, move: Callable[Arguments, None], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Move something small: here and now, unless something is under way that it has to stay behind."""
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()
        if self._under_way:
            self.begin(move, *args, **kwargs)
        else:
            move(*args, **kwargs)

    def wait(self) -> None:
        """Until all that was begun is done."""
        while self._under_way:
            self._under_way.popleft().result()
