"""Rows from their records, in Numba."""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.quantize.lanes import FLOAT, INT, MATRIX, Floats, compiled
from holdfast.kernels.quantize.packing import Records
from holdfast.kernels.quantize.scheme import CONSTANT, ESCAPED, Method

_RECORDS = types.Array(types.uint8, 2, "C", readonly=True)  # or writable
_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
_SYMMETRIC, _LOGARITHMIC = (list(Method).index(method) for method in (Method.SYMMETRIC, Method.LOGARITHMIC))


@compiled(_RECORDS, MATRIX, INT, INT, FLOAT, FLOAT)
def _unpack_8(records: Records, out: Floats, row: int, at: int, scale: np.float32, zero: np.float32) -> None:
    row, at = max(row, 0), max(at, 0)  # here and below: no index counts from the end
    for value in range(out.shape[1]):
        out[row, value] = zero + scale * np.float32(records[row, at + value])


@compiled(_RECORDS, MATRIX, INT, INT, INT, FLOAT, FLOAT)
def _unpack_even(
    records: Records, out: Floats, row: int, at: int, bits: int, scale: np.float32, zero: np.float32
) -> None:
    """Two or four codes to a byte."""
    row, at, dim, mask = max(row, 0), max(at, 0), out.shape[1], (1 << bits) - 1
    width = max(-(-dim * bits // 8), 0)
    for stripe in range(8 // bits):
        start = stripe * width
        for byte in range(min(width, dim - start)):
            code = (np.int32(records[row, at + byte]) >> (bits * stripe)) & mask
            out[row, start + byte] = zero + scale * np.float32(np.int32(code))


@compiled(_RECORDS, MATRIX, INT, INT, FLOAT, FLOAT)
def _unpack_3(records: Records, out: Floats, row: int, at: int, scale: np.float32, zero: np.float32) -> None:
    """A byte of four pairs of low bits, and half a byte of their high bits."""
    row, at, dim = max(row, 0), max(at, 0), out.shape[1]
    width = max((dim + 3) // 4, 0)
    half = (width + 1) // 2
    for stripe in range(4):
        for part in range(2):
            start, begin = stripe * width, part * half
            for byte in range(min(half, width - begin, dim - start - begin)):
                low = (np.int32(records[row, at + begin + byte]) >> (2 * stripe)) & 3
                high = (np.int32(records[row, at + width + byte]) >> (4 * part + stripe)) & 1
                out[row, start + begin + byte] = zero + scale * np.float32(np.int32(low | (high << 2)))


@compiled(_RECORDS, MATRIX, INT, INT, INT)
def unpack(records: Records, out: Floats, method: int, bits: int, header: int) -> None:
    """Every record's row, or, where codes are not steps of a scale, its codes; zeros where the row is elsewhere."""
    words = np.empty(2, np.uint32)
    numbers, half_top = words.view(np.float32), np.float32((1 << bits) - 1) / _TWO
    for row in range(records.shape[0]):
        field = np.uint32(records[row, 0]) | (np.uint32(records[row, 1]) << 8)
        second = np.uint32(records[row, 2]) | (np.uint32(records[row, 3]) << 8)
        words[0], words[1] = field << 15, second << 16
        scale, zero = numbers[0], numbers[1]
        if method == _SYMMETRIC:
            zero = -scale * half_top
        elif method >= _LOGARITHMIC:
            scale, zero = _ONE, _ZERO
        if field == ESCAPED:
            out[row] = _ZERO
        elif field == CONSTANT:
            words[0] = second | (np.uint32(records[row, 4]) << 16) | (np.uint32(records[row, 5]) << 24)
            out[row] = numbers[0]
        elif bits == 8:
            _unpack_8(records, out, row, header, scale, zero)
        elif bits == 3:
            _unpack_3(records, out, row, header, scale, zero)
        else:
            _unpack_even(records, out, row, header, bits, scale, zero)
