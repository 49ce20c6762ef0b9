"""Bit-set kernels in Numba: one thread, without the GIL. Importing this module compiles them, or loads their cache.

Row ``i`` is bit ``i & 7`` of byte ``i >> 3``, which on a little-endian machine is bit ``i & 63`` of word ``i >> 6``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.bit_sets.reference import Bits, Ids
from holdfast.kernels.compiled import compiled

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@compiled(["int64(uint8[::1], int64[::1], int64)", "int64(uint8[::1], int32[::1], int64)"])
def mark(bits: Bits, ids: Ids, rows: int) -> int:
    """Set the bits of ``ids``; -1, or the position of an id outside the table, in which case some bits may be set."""
    for position in range(ids.shape[0]):
        row = np.int64(ids[position])
        if row < 0 or row >= rows:
            return position
        bits[row >> 3] |= np.uint8(1 << (row & 7))
    return -1


@compiled([f"void(uint8[::1], {pattern}[:, ::1])" for pattern in ("int64", "int32", "int16", "uint8")])
def mark_nonzero_rows(bits: Bits, patterns: NDArray[Any]) -> None:
    """Set the bit of every row of a 2-D integer array that is not all zero."""
    for row in range(patterns.shape[0]):
        union = patterns[row, 0] & 0
        for column in range(patterns.shape[1]):
            union |= patterns[row, column]
        if union != 0:
            bits[row >> 3] |= np.uint8(1 << (row & 7))


@compiled(["uint64(uint64)"])
def _ones(word: np.uint64) -> np.uint64:
    word -= (word >> _ONE) & np.uint64(0x5555_5555_5555_5555)
    word = (word & np.uint64(0x3333_3333_3333_3333)) + ((word >> np.uint64(2)) & np.uint64(0x3333_3333_3333_3333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F_0F0F_0F0F_0F0F)
    return (word * np.uint64(0x0101_0101_0101_0101)) >> np.uint64(56)


@compiled(["uint64(uint64[::1], int64, int64, int64)"])
def _word(words: NDArray[np.uint64], index: int, start: int, stop: int) -> np.uint64:
    """The word with the bits of rows outside ``[start, stop)`` cleared."""
    word: np.uint64 = words[index]
    if start > 64 * index:
        word &= _ALL << np.uint64(start - 64 * index)
    if stop < 64 * (index + 1):
        word &= ~(_ALL << np.uint64(stop - 64 * index))
    return word


@compiled(["int64(uint64[::1], int64, int64)"])
def _count(words: NDArray[np.uint64], start: int, stop: int) -> int:
    total = np.uint64(0)
    for index in range(start >> 6, (stop + 63) >> 6):
        total += _ones(_word(words, index, start, stop))
    return int(total)


@compiled(["void(uint64[::1], int64, int64, int64[::1])"])
def _list_ids(words: NDArray[np.uint64], start: int, stop: int, ids: NDArray[np.int64]) -> None:
    found = 0
    for index in range(start >> 6, (stop + 63) >> 6):
        word = _word(words, index, start, stop)
        while word != 0:
            below = (word & (~word + _ONE)) - _ONE  # ones under the lowest set bit: as many as its position
            ids[found] = 64 * index + np.int64(_ones(below))
            found += 1
            word &= word - _ONE


def list_ids(bits: Bits, start: int, stop: int) -> NDArray[np.int64]:
    """The rows of ``[start, stop)`` whose bit is set, ascending."""
    words = bits.view(np.uint64)
    ids = np.empty(_count(words, start, stop), dtype=np.int64)
    _list_ids(words, start, stop, ids)
    return ids


def count(bits: Bits, start: int, stop: int) -> int:
    """How many rows of ``[start, stop)`` have their bit set."""
    return _count(bits.view(np.uint64), start, stop)
