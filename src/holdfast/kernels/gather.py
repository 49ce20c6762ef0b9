"""Gathers scattered rows on a CPU, in Numba, on the threads that torch itself computes with.

A scattered row that is fetched when it is needed takes the full memory latency; here each is prefetched a few rows
ahead, which Numba has no word for (``python -m benchmarks llvm`` measures what it gains).
"""

from __future__ import annotations

from collections.abc import Sequence

import numba  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numba.np.numpy_support import carray  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels import threads as pool
from holdfast.kernels.compiled import compiled, kept
from holdfast.kernels.memory import (
    LINE_BYTES,
    add_atomically,
    finish_streaming,
    pointer,
    prefetch_line,
    prefetch_once,
    stream_line,
)

_AHEAD = 12  # rows between a row's prefetch and its copy: 8 to 20 measured alike, fewer worse
_BLOCK = 2048  # rows that a thread takes at a time
WORD_BYTES = 4  # rows are copied by

Addresses = tuple[int, int, int, int, int]  # target, source, ids, bytes of a row, rows
_TARGET, _SOURCE, _IDS, _WIDTH, _ROWS = range(5)


@compiled(["void(int64, int64, int64, int64, int64, int64, int64)"])
def _gather_block(target: int, source: int, ids: int, width: int, rows: int, first: int, stop: int) -> None:
    """Copy the rows of one block."""
    words = max(width // WORD_BYTES, 0)
    wanted, to = carray(pointer(ids), rows, np.int64), carray(pointer(target), (rows, words), np.int32)
    for row in range(first, stop):
        if row + _AHEAD < stop:
            ahead = source + wanted[row + _AHEAD] * width
            for offset in range(0, width, LINE_BYTES):
                prefetch_line(ahead + offset)
        at = carray(pointer(source + wanted[row] * width), words, np.int32)
        for word in range(words):
            to[row, word] = at[word]


@compiled(["void(int64, int64, int64)"])
def _copy_words(target: int, source: int, length: int) -> None:
    words = max(length // 8, 0)
    to, at = carray(pointer(target), words, np.int64), carray(pointer(source), words, np.int64)
    for word in range(words):
        to[word] = at[word]


@compiled(["void(int64, int64, int64, int64, int64, int64, int64)"])
def _stream_block(target: int, source: int, ids: int, width: int, rows: int, first: int, stop: int) -> None:
    """The same past the caches, for rows of whole lines, wherever in a line of the target they begin."""
    head = -target % LINE_BYTES
    tail = width if head == 0 else width - LINE_BYTES + head
    wanted = carray(pointer(ids), rows, np.int64)
    for row in range(first, stop):
        if row + _AHEAD < stop:
            ahead = source + wanted[row + _AHEAD] * width
            for offset in range(0, width, LINE_BYTES):
                prefetch_once(ahead + offset)
        to, at = target + row * width, source + wanted[row] * width
        _copy_words(to, at, head)
        for offset in range(head, tail, LINE_BYTES):
            stream_line(to + offset, at + offset)
        _copy_words(to + tail, at + tail, width - tail)


@kept(lambda **caching: numba.cfunc("void(int64)", **caching))
def _kernel(job: int) -> None:
    """Take blocks until none is left. ``job``: a counter, how many gathers, whether they stream, the gathers."""
    count, streams = carray(pointer(job), 3, np.int64)[1], carray(pointer(job), 3, np.int64)[2]
    gathers = carray(pointer(job + 24), (count, 5), np.int64)
    while True:
        first, number = add_atomically(job, _BLOCK), 0
        while number < count and first >= gathers[number, _ROWS]:
            first -= (gathers[number, _ROWS] + _BLOCK - 1) // _BLOCK * _BLOCK
            number += 1
        if number == count:
            break
        target, source, ids = gathers[number, _TARGET], gathers[number, _SOURCE], gathers[number, _IDS]
        width, rows = gathers[number, _WIDTH], gathers[number, _ROWS]
        if streams and width % LINE_BYTES == 0 and target % 8 == 0:
            _stream_block(target, source, ids, width, rows, first, min(first + _BLOCK, rows))
        else:
            _gather_block(target, source, ids, width, rows, first, min(first + _BLOCK, rows))
    finish_streaming(job)


def gather(gathers: Sequence[Addresses], threads: int, *, streams: bool = False) -> None:
    """Do all of them, past the caches if told to. Rows are whole words (``WORD_BYTES``), ids int64 and not checked."""
    numbers = (field for one in gathers for field in one)
    job = np.array([0, len(gathers), streams, *numbers], dtype=np.int64)
    pool.run(_kernel, job, threads)
