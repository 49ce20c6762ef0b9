"""Work on many rows, shared by a few threads: for kernels that run without the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from holdfast.kernels.runs import Runs

Part = TypeVar("Part")
Result = TypeVar("Result")

_PART = 16384  # rows that a thread takes at a time, at least: for fewer, asking for the next ones would show
_TOGETHER = 16  # rows that kernels may work on at once
_SHARE_BYTES = 1 << 20  # for less, to wake a thread takes as long as the work
_PARTS_PER_THREAD = 4  # so that a thread that was held up leaves rows to the others
_SHARES_PER_THREAD = 2  # the same for runs, which take longer to cut


def in_parts(rows: int, work: Callable[[slice], Result], *, threads: int, part_rows: int = _PART) -> list[Result]:
    """Do the work on all rows, some at a time, on this thread and so many less one of our own; results in any order."""
    if threads == 1 or rows <= part_rows:
        return [work(slice(0, rows))]
    size = max(part_rows, -(-rows // (threads * _PARTS_PER_THREAD * _TOGETHER)) * _TOGETHER)
    return _shared([slice(start, min(start + size, rows)) for start in range(0, rows, size)], work, threads)


def in_shares(runs: Runs, work: Callable[[Runs, slice], object], *, row_bytes: int, threads: int) -> None:
    """Do the work on the rows of some runs, none of which meets another: where there are many, on several threads.

    Args:
        runs: Whose rows.
        work: Gets a share of them, and which of all rows these are.
        row_bytes: Of each.
        threads: At most, this one included.
    """
    count = min(threads * _SHARES_PER_THREAD, runs.size * row_bytes // _SHARE_BYTES)
    if threads == 1 or count < 2:
        work(runs, slice(0, runs.size))
        return
    _shared(list(runs.shares(count)), lambda share: work(*share), threads)


def _shared(parts: Sequence[Part], work: Callable[[Part], Result], threads: int) -> list[Result]:
    """Do the work on all parts: each thread takes the next one, this one among them. Results in any order."""
    left = iter(parts)

    def take_parts() -> list[Result]:
        return [work(part) for part in left]  # each part goes to one thread: next() on a list's iterator is atomic

    pool = _pool(threads - 1, os.getpid())
    others = [pool.submit(take_parts) for _ in range(threads - 1)]
    found = take_parts()
    for other in others:
        if not other.cancel():  # a thread that has not begun would find nothing to do
            found += other.result()
    return found


def start_threads(threads: int) -> None:
    """Have those that share work at hand: on a busy machine, it takes a while until a new thread runs."""
    if threads > 1:
        together = threading.Barrier(threads)  # none ends before all have begun, so each is a thread of its own
        for _ in range(threads - 1):
            _pool(threads - 1, os.getpid()).submit(together.wait)
        together.wait()


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay: starting them takes a tenth of what a plain grid of a table takes. A fork has none of them."""
    return ThreadPoolExecutor(threads, thread_name_prefix="holdfast-kernels")
