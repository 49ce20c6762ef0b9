"""Codes and their bytes, in Numba: sixteen rows at a time, row by row.

Codes are small integers, so in single precision shifts are products, unions are sums, and all of them exact. The last
bytes of a row may lack values; they are put together one by one. Where an argument is part of an index, max(.., 0)
tells the compiler that the index does not count from the end: else no loop here would become vector instructions.
"""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.quantize.lanes import FLOAT, INT, MATRIX, ROWS, Floats, compiled
from holdfast.kernels.quantize.search import INVERSE, ONE, ZERO, ZERO_POINT

Records = NDArray[np.uint8]
RECORDS = types.Array(types.uint8, 2, "C")

_3, _4, _7, _8, _15, _16, _64, _255 = (np.float32(number) for number in (3, 4, 7, 8, 15, 16, 64, 255))


@compiled(FLOAT, FLOAT, FLOAT, FLOAT, returns=FLOAT)
def _code(x: np.float32, zero: np.float32, inverse: np.float32, top: np.float32) -> np.float32:
    code = np.rint((x - zero) * inverse)
    code = code if code > ZERO else ZERO
    return code if code < top else top


@compiled(ROWS, INT, INT, INT, MATRIX, FLOAT, returns=FLOAT)
def _last_byte(block: Floats, lane: int, byte: int, width: int, m: Floats, top: np.float32) -> np.float32:
    """The sum of the codes of value ``byte`` of every stripe, each times the next power of top + 1."""
    total, factor = ZERO, ONE
    for value in range(byte, block.shape[1], width):
        total += factor * _code(block[lane, value], m[ZERO_POINT, lane], m[INVERSE, lane], top)
        factor *= top + ONE
    return total


@compiled(ROWS, RECORDS, INT, INT, INT, MATRIX)
def _pack_8(block: Floats, out: Records, first: int, count: int, at: int, m: Floats) -> None:
    first, at = max(first, 0), max(at, 0)
    for lane in range(count):
        zero, inverse = m[ZERO_POINT, lane], m[INVERSE, lane]
        for value in range(block.shape[1]):
            out[first + lane, at + value] = np.uint8(np.int32(_code(block[lane, value], zero, inverse, _255)))


@compiled(ROWS, RECORDS, INT, INT, INT, MATRIX)
def _pack_4(block: Floats, out: Records, first: int, count: int, at: int, m: Floats) -> None:
    first, at, dim = max(first, 0), max(at, 0), block.shape[1]
    width = max((dim + 1) // 2, 0)
    for lane in range(count):
        zero, inverse = m[ZERO_POINT, lane], m[INVERSE, lane]
        for byte in range(dim - width):
            low = _code(block[lane, byte], zero, inverse, _15)
            high = _code(block[lane, width + byte], zero, inverse, _15)
            out[first + lane, at + byte] = np.uint8(np.int32(low + _16 * high))
        for byte in range(dim - width, width):
            out[first + lane, at + byte] = np.uint8(np.int32(_last_byte(block, lane, byte, width, m, _15)))


@compiled(ROWS, RECORDS, INT, INT, INT, MATRIX)
def _pack_2(block: Floats, out: Records, first: int, count: int, at: int, m: Floats) -> None:
    first, at, dim = max(first, 0), max(at, 0), block.shape[1]
    width = max((dim + 3) // 4, 0)
    full = max(dim - 3 * width, 0)
    for lane in range(count):
        zero, inverse = m[ZERO_POINT, lane], m[INVERSE, lane]
        for byte in range(full):
            a, b = _code(block[lane, byte], zero, inverse, _3), _code(block[lane, width + byte], zero, inverse, _3)
            c = _code(block[lane, 2 * width + byte], zero, inverse, _3)
            d = _code(block[lane, 3 * width + byte], zero, inverse, _3)
            out[first + lane, at + byte] = np.uint8(np.int32((a + _4 * b) + _16 * (c + _4 * d)))
        for byte in range(full, width):
            out[first + lane, at + byte] = np.uint8(np.int32(_last_byte(block, lane, byte, width, m, _3)))


@compiled(INT, returns=INT)
def _lows(four: int) -> int:
    return (four & 0o3) | ((four >> 1) & 0o14) | ((four >> 2) & 0o60) | ((four >> 3) & 0o300)


@compiled(INT, returns=INT)
def _highs(four: int) -> int:
    return ((four >> 2) & 1) | ((four >> 4) & 2) | ((four >> 6) & 4) | ((four >> 8) & 8)


@compiled(ROWS, RECORDS, INT, INT, INT, MATRIX)
def _pack_3(block: Floats, out: Records, first: int, count: int, at: int, m: Floats) -> None:
    """Four codes make an integer below 2^12: the low bits of each are a byte, the high bits half a byte."""
    first, at, dim = max(first, 0), max(at, 0), block.shape[1]
    width, half = max((dim + 3) // 4, 0), max(((dim + 3) // 4 + 1) // 2, 0)
    full, highs = max(dim - 3 * width, 0), np.zeros(2 * half, np.int32)
    for lane in range(count):
        zero, inverse = m[ZERO_POINT, lane], m[INVERSE, lane]
        for byte in range(full):
            a, b = _code(block[lane, byte], zero, inverse, _7), _code(block[lane, width + byte], zero, inverse, _7)
            c = _code(block[lane, 2 * width + byte], zero, inverse, _7)
            d = _code(block[lane, 3 * width + byte], zero, inverse, _7)
            four = np.int32((a + _8 * b) + _64 * (c + _8 * d))
            out[first + lane, at + byte] = np.uint8(_lows(int(four)))
            highs[byte] = _highs(int(four))
        for byte in range(full, width):
            four = np.int32(_last_byte(block, lane, byte, width, m, _7))
            out[first + lane, at + byte] = np.uint8(_lows(int(four)))
            highs[byte] = _highs(int(four))
        for byte in range(half):
            out[first + lane, at + width + byte] = np.uint8(highs[byte] | (highs[half + byte] << 4))


@compiled(ROWS, RECORDS, INT, INT, INT, INT, MATRIX)
def pack(block: Floats, out: Records, first: int, count: int, at: int, bits: int, m: Floats) -> None:
    """Write the codes of ``count`` rows of the block to the records from ``first`` on, from byte ``at`` on."""
    if bits == 8:
        _pack_8(block, out, first, count, at, m)
    elif bits == 4:
        _pack_4(block, out, first, count, at, m)
    elif bits == 3:
        _pack_3(block, out, first, count, at, m)
    else:
        _pack_2(block, out, first, count, at, m)
