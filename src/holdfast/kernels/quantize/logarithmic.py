"""The logarithmic grid in Numba: equal steps of the bit pattern, which between powers of two is linear in the value.

Code 0 is zero; the others run from the smallest positive value of the row to its largest.
"""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.quantize.lanes import INT, LANES, MATRIX, ROWS, Floats, compiled
from holdfast.kernels.quantize.scheme import CONSTANT, ESCAPED
from holdfast.kernels.quantize.search import INVERSE, LOW, ONE, ZERO, ZERO_POINT

Fields = NDArray[np.uint32]
Patterns = NDArray[np.int32]

_FIELDS = types.Array(types.uint32, 2, "C")
_PATTERNS = types.Array(types.int32, 2, "C")
_INFINITE = np.int32(0x7F80_0000)  # the bit pattern of infinity
_LARGEST = np.int64(0x7F7F_FFFF)  # and of the largest number below


@compiled(ROWS, _PATTERNS, _FIELDS, MATRIX)
def _choose_fields(block: Floats, patterns: Patterns, fields: Fields, m: Floats) -> None:
    """Patterns of the values, both header fields of each row, and constant rows' values."""
    for lane in range(LANES):
        most, least = np.int32(0), _INFINITE
        same, negative = True, False
        for value in range(block.shape[1]):
            pattern = patterns[lane, value]
            most, least = max(most, pattern), min(least, pattern if pattern > 0 else _INFINITE)
            negative |= pattern < 0
            same &= pattern == patterns[lane, 0]
        m[LOW, lane], m[ZERO_POINT, lane], m[INVERSE, lane] = block[lane, 0] + ZERO, ZERO, ONE
        fields[0, lane] = (np.int64(most) + 0x7FFF) >> 15
        fields[1, lane] = least >> 15 if least >> 15 else 1  # what is positive never becomes zero
        if negative or most >= _INFINITE:
            fields[0, lane] = ESCAPED
        elif same:
            fields[0, lane] = CONSTANT


@compiled(ROWS, MATRIX, _FIELDS, MATRIX, INT)
def find_codes(block: Floats, codes: Floats, fields: Fields, m: Floats, top: int) -> None:
    """The codes of the block's rows as numbers, and their header fields."""
    patterns = codes.view(np.int32)
    for lane in range(LANES):
        for value in range(block.shape[1]):
            codes[lane, value] = block[lane, value] + ZERO  # never -0.0, whose pattern is negative
    _choose_fields(block, patterns, fields, m)
    for lane in range(LANES):
        first = np.int32(fields[1, lane] << 15)
        spread = np.int64(fields[0, lane]) - np.int64(fields[1, lane])
        inverse = np.float32(top - 1) / np.float32(spread << 15 if spread else 1)  # 0: one value that its field holds
        for value in range(block.shape[1]):
            pattern = patterns[lane, value]
            above = np.int32(pattern - first) if pattern > first else np.int32(0)
            code = ONE + np.rint(np.float32(above) * inverse)
            codes[lane, value] = code if pattern > 0 else ZERO


@compiled(types.Array(types.uint8, 2, "C", readonly=True), MATRIX, INT)
def to_values(records: NDArray[np.uint8], rows: Floats, top: int) -> None:
    """Replace the codes of unpacked rows by what they stand for; escaped and constant rows are not codes."""
    patterns = rows.view(np.int32)
    for row in range(rows.shape[0]):
        high = np.int64(records[row, 0]) | (np.int64(records[row, 1]) << 8)
        low = np.int64(records[row, 2]) | (np.int64(records[row, 3]) << 8)
        if high == CONSTANT or high == ESCAPED:  # noqa: SIM109 - tuples are slower here
            continue
        step = np.float32((high - low) << 15) / np.float32(top - 1)
        for value in range(rows.shape[1]):
            code = rows[row, value]
            pattern = (low << 15) + np.int64(np.rint((code - ONE) * step))
            pattern = pattern if pattern < _LARGEST else _LARGEST
            patterns[row, value] = pattern if code > ZERO else 0
