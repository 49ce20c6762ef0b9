"""Bit-set kernels in NumPy: what the faster ones must equal, bit for bit, and what runs where Numba is missing.

Row ``i`` is bit ``i & 7`` of byte ``i >> 3``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]
Ids = NDArray[np.int64] | NDArray[np.int32]


def mark(bits: Bits, ids: Ids, rows: int) -> int:
    """Set the bits of ``ids``; -1, or the position of an id outside the table, in which case some bits may be set."""
    outside = np.flatnonzero((ids < 0) | (ids >= rows))
    if outside.size:
        return int(outside[0])
    # Several ids share a byte: `bits[...] |= ...` would keep only the last one's bit.
    np.bitwise_or.at(bits, ids >> 3, np.left_shift(1, ids & 7).astype(np.uint8))
    return -1


def mark_nonzero_rows(bits: Bits, patterns: NDArray[Any]) -> None:
    """Set the bit of every row of a 2-D integer array that is not all zero."""
    packed = np.packbits((patterns != 0).any(axis=1), bitorder="little")
    bits[: packed.size] |= packed


def list_ids(bits: Bits, start: int, stop: int) -> NDArray[np.int64]:
    """The rows of ``[start, stop)`` whose bit is set, ascending."""
    return np.flatnonzero(_unpack(bits, start, stop)).astype(np.int64) + start


def count(bits: Bits, start: int, stop: int) -> int:
    """How many rows of ``[start, stop)`` have their bit set."""
    return int(np.count_nonzero(_unpack(bits, start, stop)))


def _unpack(bits: Bits, start: int, stop: int) -> Bits:
    first = start >> 3
    unpacked = np.unpackbits(bits[first : (stop + 7) >> 3], bitorder="little")
    return unpacked[start - 8 * first : stop - 8 * first]
