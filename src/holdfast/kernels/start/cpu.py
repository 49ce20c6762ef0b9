"""Rows' beginnings in Numba: every operation is the reference's, in its order. Importing this module compiles them."""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.compiled import compiled
from holdfast.kernels.start.reference import (
    FIRST_MIX,
    LN_2,
    LN_TERMS,
    MIDDLE_ABOVE,
    MIDDLE_BELOW,
    ROOT_HALF,
    SECOND_MIX,
    STRIDE,
    TAIL,
    TAIL_ABOVE,
    TAIL_BELOW,
    Floats,
)

__all__ = ["normal", "uniform"]

_STRIDE, _FIRST_MIX, _SECOND_MIX = np.uint64(STRIDE), np.uint64(FIRST_MIX), np.uint64(SECOND_MIX)
_ONE, _LOW_BITS = np.uint64(1), np.uint64(0xFFFFFFFF)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32))
_ROWS = types.Array(types.float32, 2, "C")
_DOUBLE, _WORD, _INT = types.float64, types.uint64, types.int64
_FILL = [types.void(_ROWS, _WORD, _INT, _DOUBLE, _DOUBLE)]


@compiled([_WORD(_WORD)], inline="always")
def _mix(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _SHIFTS[0])) * _FIRST_MIX
    word = (word ^ (word >> _SHIFTS[1])) * _SECOND_MIX
    return word ^ (word >> _SHIFTS[2])


@compiled([_WORD(_WORD, _INT)])
def _row_key(key: np.uint64, row: int) -> np.uint64:
    return _mix(key + (np.uint64(row) + _ONE) * _STRIDE)  # type: ignore[no-any-return, unused-ignore]


@compiled([_DOUBLE(_WORD, _INT)])
def _bits(row_key: np.uint64, column: int) -> float:
    """32 random bits, as a number."""
    word = _mix(row_key + (np.uint64(column >> 1) + _ONE) * _STRIDE)
    return float(word >> _SHIFTS[3] if column & 1 else word & _LOW_BITS)


@compiled(_FILL, error_model="numpy")
def uniform(rows: Floats, key: np.uint64, first_row: int, low: float, high: float) -> None:
    """Evenly between ``low`` and ``high``."""
    for row in range(rows.shape[0]):
        row_key = _row_key(key, first_row + row)
        for column in range(rows.shape[1]):
            rows[row, column] = np.float32(low + _bits(row_key, column) * 2.0**-32 * (high - low))


@compiled([_DOUBLE(_DOUBLE)], error_model="numpy")
def _middle(p: float) -> float:
    shifted = p - 0.5
    x = shifted * shifted
    above, below = MIDDLE_ABOVE[0], MIDDLE_BELOW[0]
    for number in range(1, 6):
        above = above * x + MIDDLE_ABOVE[number]
        below = below * x + MIDDLE_BELOW[number]
    return shifted * (above / below)


@compiled([_DOUBLE(_DOUBLE)], error_model="numpy")
def _logarithm(value: float) -> float:
    exponent = 0
    while value < ROOT_HALF:  # a probability of 32 bits: at most 33 times, each of them exact
        value, exponent = value * 2.0, exponent - 1
    ratio = (value - 1.0) / (value + 1.0)
    x, total = ratio * ratio, LN_TERMS[0]
    for number in range(1, 7):
        total = total * x + LN_TERMS[number]
    return exponent * LN_2 + 2.0 * ratio * total


@compiled([_DOUBLE(_DOUBLE)], error_model="numpy")
def _tail(p: float) -> float:
    x = np.sqrt(-2.0 * _logarithm(min(p, 1.0 - p)))
    above, below = TAIL_ABOVE[0], TAIL_BELOW[0]
    for number in range(1, 6):
        above = above * x + TAIL_ABOVE[number]
    for number in range(1, 5):
        below = below * x + TAIL_BELOW[number]
    return above / below if p < 0.5 else -(above / below)


@compiled(_FILL, error_model="numpy")
def normal(rows: Floats, key: np.uint64, first_row: int, mean: float, std: float) -> None:
    """By the inverse of the distribution: the middle of it everywhere, the few values in the tails after that."""
    for row in range(rows.shape[0]):
        row_key = _row_key(key, first_row + row)
        for column in range(rows.shape[1]):
            rows[row, column] = np.float32(mean + std * _middle((_bits(row_key, column) + 0.5) * 2.0**-32))
        for column in range(rows.shape[1]):
            p = (_bits(row_key, column) + 0.5) * 2.0**-32
            if min(p, 1.0 - p) < TAIL:
                rows[row, column] = np.float32(mean + std * _tail(p))
