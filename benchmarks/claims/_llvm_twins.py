"""What the kernels written for LLVM do, in plain Numba: a row at a time, with the freedoms that Numba can be given.

Sums are of integers that single precision holds, so that their order may change and no bit of the result does. Rows
here are finite and not constant.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numba.np.numpy_support import carray  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled
from holdfast.kernels.memory import pointer
from holdfast.kernels.quantize.scheme import KEPT, REFITS

Rows = NDArray[np.float32]
Records = NDArray[np.uint8]

_ZERO, _ONE = np.float32(0), np.float32(1)
_FLOAT, _ROW = types.float32, types.Array(types.float32, 1, "C")
_TWO, _THREE = (cast(Any, types.UniTuple)(_FLOAT, count) for count in (2, 3))
_BUFFER, _TABLE = types.Array(types.float32, 1, "C"), types.Array(types.float32, 2, "C")
_RECORDS, _WORDS = types.Array(types.uint8, 2, "C"), types.Array(types.uint32, 1, "C")
_ANY_ORDER: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract"}}
_NO_NAN: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "nnan", "nsz"}}
_STRICT: dict[str, Any] = {"error_model": "numpy"}
_KEPT = np.uint32(KEPT)
_3, _4, _15, _16, _255 = (np.float32(number) for number in (3, 4, 15, 16, 255))


@compiled([_TWO(_ROW)], **_NO_NAN)
def _bounds(row: Rows) -> tuple[np.float32, np.float32]:
    low = high = row[0]
    for value in row:
        low = value if value < low else low
        high = value if value > high else high
    return low, high


@compiled([_FLOAT(_ROW)], **_ANY_ORDER)
def _check(row: Rows) -> np.float32:
    """0, or NaN where a value is not finite."""
    total = _ZERO
    for value in row:
        total += value * _ZERO
    return total


@compiled([_FLOAT(_ROW, _BUFFER, _FLOAT, _FLOAT)], **_ANY_ORDER)
def _to_units(row: Rows, units: Rows, low: np.float32, factor: np.float32) -> np.float32:
    total = _ZERO
    for number in range(row.shape[0]):
        units[number] = np.rint((row[number] - low) * factor)
        total += units[number]
    return total


@compiled([_THREE(_BUFFER, _FLOAT, _FLOAT, _FLOAT)], **_ANY_ORDER)
def _sums(units: Rows, slope: np.float32, shift: np.float32, top: np.float32) -> tuple[Any, Any, Any]:
    codes = squares = products = _ZERO
    for unit in units:
        code = np.rint(unit * slope + shift)
        code = code if code > _ZERO else _ZERO
        code = code if code < top else top
        codes += code
        squares += code * code
        products += code * unit
    return codes, squares, products


@compiled([_TWO(_ROW, _BUFFER, _TABLE, _FLOAT, _FLOAT, _WORDS, _BUFFER)], **_STRICT)
def _fitted_grid(
    row: Rows, units: Rows, lines: Rows, top: np.float32, finest: np.float32, words: NDArray[np.uint32], numbers: Rows
) -> tuple[np.float32, np.float32]:
    """Scale and zero point of the best of several grids and of their refits, by least squares."""
    low, high = _bounds(row)
    low, high, size = low + _ZERO, high + _ZERO, np.float32(row.shape[0])
    total, share = _to_units(row, units, low, finest / (high - low)), _ONE / size
    best, shared_best, own_best = _ZERO, _ZERO, _ONE
    for start in range(lines.shape[0] + REFITS):
        if start < lines.shape[0]:
            slope, shift = lines[start, 0], lines[start, 1]
        else:
            numbers[0] = own_best / shared_best
            words[0] &= _KEPT
            slope = numbers[0]
            shift = (best - total * slope) * share
        codes, squares, products = _sums(units, slope, shift, top)
        shared, own = size * products - total * codes, size * squares - codes * codes
        gain = shared * shared * own_best if shared > _ZERO else -_ONE
        if shared_best * shared_best * own < gain:
            best, shared_best, own_best = codes, shared, own
    step, unit = shared_best / own_best, (high - low) / finest
    return step * unit, low + (total - step * best) * share * unit


@compiled([_FLOAT(_FLOAT, _FLOAT, _FLOAT, _FLOAT)], **_STRICT)
def _code(value: np.float32, zero: np.float32, inverse: np.float32, top: np.float32) -> np.float32:
    code = np.rint((value - zero) * inverse)
    code = code if code > _ZERO else _ZERO
    return code if code < top else top


@compiled([types.void(_TABLE, _RECORDS, types.int64, types.int64, _FLOAT, _FLOAT, types.uint32)], **_STRICT)
def _put(rows: Rows, out: Records, row: int, bits: int, scale: np.float32, zero: np.float32, header: np.uint32) -> None:
    """The record of a row on a grid."""
    row, inverse = max(row, 0), _ONE / scale
    for byte in range(4):
        out[row, byte] = np.uint8(header >> np.uint32(8 * byte))
    width = max(rows.shape[1] * bits // 8, 0)
    if bits == 8:
        for byte in range(width):
            out[row, 4 + byte] = np.uint8(np.int32(_code(rows[row, byte], zero, inverse, _255)))
    elif bits == 4:
        for byte in range(width):
            low = _code(rows[row, byte], zero, inverse, _15)
            high = _code(rows[row, width + byte], zero, inverse, _15)
            out[row, 4 + byte] = np.uint8(np.int32(low + _16 * high))
    else:
        for byte in range(width):
            a, b = _code(rows[row, byte], zero, inverse, _3), _code(rows[row, width + byte], zero, inverse, _3)
            c = _code(rows[row, 2 * width + byte], zero, inverse, _3)
            d = _code(rows[row, 3 * width + byte], zero, inverse, _3)
            out[row, 4 + byte] = np.uint8(np.int32((a + _4 * b) + _16 * (c + _4 * d)))


@compiled([types.void(_TABLE, _RECORDS, types.int64, _TABLE, _FLOAT)], **_STRICT)
def encode_fitted(rows: Rows, out: Records, bits: int, lines: Rows, finest: np.float32) -> None:
    """Records of rows on the grids that least squares find. Rows fill their bytes."""
    units, words, top = np.empty(rows.shape[1], np.float32), np.empty(2, np.uint32), np.float32((1 << bits) - 1)
    numbers = words.view(np.float32)
    for row in range(rows.shape[0]):
        scale, zero = _fitted_grid(rows[row], units, lines, top, finest, words, numbers)
        numbers[0], numbers[1] = scale, zero
        words[0] = (words[0] + np.uint32(0x3FFF) + ((words[0] >> np.uint32(15)) & np.uint32(1))) & np.uint32(0xFFFF8000)
        words[1] = (words[1] + np.uint32(0x7FFF) + ((words[1] >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
        _put(rows, out, row, bits, numbers[0], numbers[1], (words[0] >> np.uint32(15)) | words[1])


@compiled([types.int64(_TABLE, _RECORDS, types.int64)], **_STRICT)
def encode_plain(rows: Rows, out: Records, bits: int) -> int:
    """Records of rows on their plain ranges; how many could be encoded. Rows fill their bytes."""
    words, top = np.empty(2, np.uint32), np.float32((1 << bits) - 1)
    numbers = words.view(np.float32)
    for row in range(rows.shape[0]):
        low, high = _bounds(rows[row])
        if np.isnan(_check(rows[row])):
            return row
        numbers[1] = low + _ZERO
        words[1] = (words[1] + np.uint32(0xFFFF if words[1] >> np.uint32(31) else 0)) & np.uint32(0xFFFF0000)
        numbers[0] = (high - numbers[1]) / top
        words[0] = (words[0] + np.uint32(0x7FFF)) & np.uint32(0xFFFF8000)
        _put(rows, out, row, bits, numbers[0], numbers[1], (words[0] >> np.uint32(15)) | words[1])
    return len(rows)


@compiled(["void(int64, int64, int64[::1], int64)"])
def gather(target: int, source: int, ids: NDArray[np.int64], width: int) -> None:
    """Copy scattered rows, none asked for before it is needed."""
    words = max(width // 8, 0)
    to = carray(pointer(target), (ids.shape[0], words), np.int64)
    for row in range(ids.shape[0]):
        at = carray(pointer(source + ids[row] * width), words, np.int64)
        for word in range(words):
            to[row, word] = at[word]
