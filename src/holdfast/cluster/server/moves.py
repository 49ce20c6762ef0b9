"""Rows and parities on their way from messages into arrays, or back, while the server's own thread goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, Self, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_FOR_ROWS = 2  # threads: most rows come at the end, when nothing else is left to do
_MOST = 16  # blocks that keep their memory: with more of them under way, whoever brings another waits


@dataclass(frozen=True, slots=True)
class Movers:
    """Threads that move rows, and those that move parities: neither wait for the others.

    A row comes once, or is read as it is, so that it does not matter which comes first. To a parity much is added, in
    its order.

    Args:
        of_rows: The threads for rows.
        of_parities: The one for parities.
        may_read: Whether those for rows also read what others ask for. Otherwise the server does that itself.
    """

    of_rows: ThreadPoolExecutor
    of_parities: ThreadPoolExecutor
    may_read: bool

    @classmethod
    def started(cls, *, may_read: bool = True) -> Self:
        """Before there is anything to move: on a busy machine, it takes a while until a new thread runs."""
        return cls(_started(_FOR_ROWS), _started(1), may_read)

    def close(self) -> None:
        """Let what was begun end, and the threads."""
        self.of_rows.shutdown()
        self.of_parities.shutdown()


def _started(threads: int) -> ThreadPoolExecutor:
    pool, together = ThreadPoolExecutor(threads, thread_name_prefix="holdfast-moves"), threading.Barrier(threads)
    for _ in range(threads):
        pool.submit(together.wait)
    return pool


class Moves:
    """What is written to arrays, or read from them; by one thread in its order.

    Whoever reads what is written, or writes to what is read, waits first: nobody sees a row before it is there, or
    after it has changed.

    Args:
        mover: What moves. None: all is moved when ``begin`` returns.
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

    def find(
        self, find: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """What the arrays say behind all that was begun before, and before all that is begun from now on."""
        found: Future[Result] = Future()  # of its own: what is under way is kept for longer

        def settle() -> None:
            try:
                found.set_result(find(*args, **kwargs))
            except BaseException as error:
                found.set_exception(error)
                raise

        self.begin(settle)
        return found

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
