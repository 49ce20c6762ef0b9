"""Rows' beginnings in NumPy: what the faster kernels must equal, bit for bit, and what runs where Numba is missing.

A word of 64 random bits is a hash of a counter (the finalizer of SplitMix64), and gives two columns, the even one from
its lower half. Everything after it is float64, one IEEE 754 operation after the other in the order written here, and
rounded to float32 at the end: no function of a mathematical library is used, because these differ in the last bit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Words = NDArray[np.uint64]

STRIDE: Final = 0x9E3779B97F4A7C15  # between counters: 2^64 by the golden ratio
FIRST_MIX: Final = 0xBF58476D1CE4E5B9
SECOND_MIX: Final = 0x94D049BB133111EB

# The inverse of the normal distribution as quotients of polynomials, highest power first: around the middle in
# (p - 1/2)^2, in the tails in √(-2 ln p). The relative error is below 2e-9, where float32 has 6e-8.
TAIL: Final = 0.02425
MIDDLE_ABOVE: Final = (
    -3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02,
    1.383577518672690e02, -3.066479806614716e01, 2.506628277459239e00,
)  # fmt: skip
MIDDLE_BELOW: Final = (
    -5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02,
    6.680131188771972e01, -1.328068155288572e01, 1.0,
)  # fmt: skip
TAIL_ABOVE: Final = (
    -7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e00,
    -2.549732539343734e00, 4.374664141464968e00, 2.938163982698783e00,
)  # fmt: skip
TAIL_BELOW: Final = (
    7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0,
)  # fmt: skip
LN_2: Final = 0.6931471805599453
LN_TERMS: Final = (1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0)
ROOT_HALF: Final = 0.7071067811865476
_BLOCK_ROWS: Final = 4096  # worked on at once, so that temporary arrays stay small


def uniform(rows: Floats, key: np.uint64, first_row: int, low: float, high: float) -> None:
    """Evenly between ``low`` and ``high``."""
    for part, bits in _blocks(rows, key, first_row):
        part[:] = low + bits.astype(np.float64) * 2.0**-32 * (high - low)


def normal(rows: Floats, key: np.uint64, first_row: int, mean: float, std: float) -> None:
    """By the inverse of the distribution."""
    for part, bits in _blocks(rows, key, first_row):
        part[:] = mean + std * inverse_normal((bits.astype(np.float64) + 0.5) * 2.0**-32)


def inverse_normal(p: Doubles) -> Doubles:
    """The number that a standard normal variable is below with probability ``p``, from 0 to 1."""
    shifted = p - 0.5
    square = shifted * shifted
    middle = shifted * (_polynomial(MIDDLE_ABOVE, square) / _polynomial(MIDDLE_BELOW, square))
    nearest = np.minimum(p, 1.0 - p)
    distance = np.sqrt(-2.0 * _logarithm(nearest))
    lower = _polynomial(TAIL_ABOVE, distance) / _polynomial(TAIL_BELOW, distance)
    return np.where(nearest < TAIL, np.where(p < 0.5, lower, -lower), middle)


def _logarithm(values: Doubles) -> Doubles:
    fractions, exponents = np.frexp(values)
    small = fractions < ROOT_HALF
    fractions = np.where(small, fractions * 2.0, fractions)
    ratio = (fractions - 1.0) / (fractions + 1.0)
    result: Doubles = (exponents - small) * LN_2 + 2.0 * ratio * _polynomial(LN_TERMS, ratio * ratio)
    return result


def _polynomial(factors: tuple[float, ...], x: Doubles) -> Doubles:
    result = np.full_like(x, factors[0])
    for factor in factors[1:]:
        result = result * x + factor
    return result


def _blocks(rows: Floats, key: np.uint64, first_row: int) -> list[tuple[Floats, NDArray[np.uint32]]]:
    parts = [rows[at : at + _BLOCK_ROWS] for at in range(0, len(rows), _BLOCK_ROWS)]
    firsts = range(first_row, first_row + len(rows), _BLOCK_ROWS)
    return [(part, _bits(part.shape, key, first)) for part, first in zip(parts, firsts, strict=True)]


def _bits(shape: tuple[int, ...], key: np.uint64, first_row: int) -> NDArray[np.uint32]:
    """32 random bits for each value."""
    stride, one = np.uint64(STRIDE), np.uint64(1)
    numbers = np.arange(shape[0], dtype=np.uint64) + np.uint64(first_row)
    row_keys = _mix(key + (numbers + one) * stride)
    pairs = np.arange((shape[1] + 1) // 2, dtype=np.uint64)
    words = _mix(row_keys[:, None] + (pairs + one) * stride)
    halves = np.stack([words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)], axis=-1).astype(np.uint32)
    return halves.reshape(shape[0], -1)[:, : shape[1]]


def _mix(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST_MIX)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND_MIX)
    return words ^ (words >> np.uint64(31))
