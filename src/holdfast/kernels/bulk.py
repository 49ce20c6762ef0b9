"""Copies large pieces of memory past the caches, in Numba.

A store to memory that is in no cache first fetches what it overwrites: three bytes move for each one that is copied.
Streaming stores do not fetch, and leave the caches to others. Two ranks that copied 390 MiB each, on two cores, took
26 ms instead of torch's 35. Numba has no word for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba  # type: ignore[import-untyped, unused-ignore]
import numpy as np
from numba.np.numpy_support import carray  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels import threads as pool
from holdfast.kernels.compiled import compiled, kept
from holdfast.kernels.memory import LINE_BYTES, add_atomically, finish_streaming, pointer, stream_line

_BLOCK = 2**18  # bytes that a thread takes at a time

Piece = tuple[int, int, int]  # target, source, bytes
_TARGET, _SOURCE, _LENGTH = range(3)


@compiled(["void(int64, int64, int64)"])
def _copy_bytes(target: int, source: int, length: int) -> None:
    to, at = carray(pointer(target), length, np.uint8), carray(pointer(source), length, np.uint8)
    for number in range(length):
        to[number] = at[number]


@compiled(["void(int64, int64, int64)"])
def _copy_block(target: int, source: int, length: int) -> None:
    """Copy by whole lines of the target; what is before the first and after the last of them, as it is."""
    head = min(-target % LINE_BYTES, length)
    lines = (length - head) // LINE_BYTES * LINE_BYTES
    _copy_bytes(target, source, head)
    for offset in range(head, head + lines, LINE_BYTES):
        stream_line(target + offset, source + offset)
    _copy_bytes(target + head + lines, source + head + lines, length - head - lines)


@kept(lambda **caching: numba.cfunc("void(int64)", **caching))
def _kernel(job: int) -> None:
    """Take blocks until none is left. ``job`` is a counter, how many pieces there are, and the pieces."""
    count = carray(pointer(job), 2, np.int64)[1]
    pieces = carray(pointer(job + 16), (count, 3), np.int64)
    while True:
        first, number = add_atomically(job, _BLOCK), 0
        while number < count and first >= pieces[number, _LENGTH]:
            first -= (pieces[number, _LENGTH] + _BLOCK - 1) // _BLOCK * _BLOCK
            number += 1
        if number == count:
            break
        length = min(_BLOCK, pieces[number, _LENGTH] - first)
        _copy_block(pieces[number, _TARGET] + first, pieces[number, _SOURCE] + first, length)
    finish_streaming(job)


def copy(pieces: Sequence[Piece], threads: int) -> None:
    """Copy all of them. Nothing is checked; targets overlap with nothing."""
    pool.run(_kernel, _job(pieces), threads)


def copy_alone(pieces: Sequence[Piece]) -> None:
    """The same on the thread that calls, while others run Python."""
    job = _job(pieces)
    _kernel.ctypes(job.ctypes.data)


def _job(pieces: Sequence[Piece]) -> NDArray[np.int64]:
    return np.array([0, len(pieces), *(field for piece in pieces for field in piece)], dtype=np.int64)
