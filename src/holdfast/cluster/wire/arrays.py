"""Payloads: tuples of arrays. Small ones lie in the header, large ones are frames of their own and are not copied."""

from __future__ import annotations

import struct
from math import prod
from typing import Any

import numpy as np

from holdfast.cluster.wire.malformed import MalformedFrame
from holdfast.cluster.wire.sheet import MOST_FRAME_BYTES, Array, Cursor, Sheet
from holdfast.errors import ConfigurationError

INLINE_BYTES = 4096  # up to here a copy into the header is cheaper than a frame (design note 009)
MOST_DIMENSIONS = 8

# By code, which is part of the format. A bfloat16 travels as uint16: NumPy has no such type.
DTYPES = {
    code: np.dtype(name)
    for code, name in {1: "<f4", 2: "<f2", 3: "<u2", 4: "<i8", 5: "<i4", 6: "|u1", 7: "|b1"}.items()
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}

_COUNT = struct.Struct("<H")
_ARRAY = struct.Struct("<BBB")  # dtype, whether it lies in the header, dimensions
_SHAPES = [struct.Struct(f"<{dimensions}Q") for dimensions in range(MOST_DIMENSIONS + 1)]
_COPIED_BYTES = 16384  # smaller frames share a buffer of ZeroMQ's, aligned to nothing


def write_payload(sheet: Sheet, arrays: tuple[Array, ...]) -> None:
    """The arrays are given away: they may still be read after this, and must not change."""
    sheet.head += _COUNT.pack(len(arrays))
    for array in arrays:
        _write(sheet, array)


def read_payload(cursor: Cursor) -> tuple[Array, ...]:
    """Arrays that may be written to; a large one keeps its frame alive."""
    (count,) = cursor.numbers(_COUNT)
    return tuple([_read(cursor) for _ in range(count)])


def _write(sheet: Sheet, array: Array) -> None:
    code = _CODES.get(array.dtype)
    if code is None or array.ndim > MOST_DIMENSIONS:
        known = ", ".join(dtype.name for dtype in _CODES)
        raise ConfigurationError(
            f"an array of {array.dtype} with {array.ndim} dimensions cannot be sent; convert it to one of {known} "
            f"with at most {MOST_DIMENSIONS} dimensions"
        )
    is_inline = array.nbytes <= INLINE_BYTES
    sheet.head += _ARRAY.pack(code, is_inline, array.ndim)
    sheet.head += _SHAPES[array.ndim].pack(*array.shape)
    if is_inline:
        sheet.align()
        sheet.head += array.tobytes()
    else:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sheet.frames.extend(flat[at : at + MOST_FRAME_BYTES] for at in range(0, flat.size, MOST_FRAME_BYTES))


def _read(cursor: Cursor) -> Array:
    code, is_inline, dimensions = cursor.numbers(_ARRAY)
    dtype = DTYPES.get(code)
    if dtype is None or is_inline > 1 or dimensions > MOST_DIMENSIONS:
        raise MalformedFrame(f"no array has type {code}, place {is_inline} and {dimensions} dimensions")
    shape = cursor.numbers(_SHAPES[dimensions])
    flat = cursor.array(dtype, prod(shape)) if is_inline else _of_frames(cursor, dtype, prod(shape))
    if dtype.kind == "b" and flat.size and flat.view(np.uint8).max() > 1:
        raise MalformedFrame("an array of booleans holds more than 0 and 1")
    return flat if dimensions == 1 else _reshaped(flat, shape)


def _of_frames(cursor: Cursor, dtype: np.dtype[Any], count: int) -> Array:
    left = count * dtype.itemsize
    frames = []
    while left:
        frame = cursor.frame()
        if frame.nbytes != min(left, MOST_FRAME_BYTES):
            raise MalformedFrame(f"a frame of {frame.nbytes} bytes stands for {left} bytes of {dtype.name}")
        frames.append(frame)
        left -= frame.nbytes
    if len(frames) == 1:
        return _of_frame(frames[0], dtype)
    return np.frombuffer(bytearray().join(frames), dtype) if frames else np.empty(0, dtype)


def _of_frame(frame: memoryview, dtype: np.dtype[Any]) -> Array:
    if frame.nbytes < _COPIED_BYTES:
        return np.frombuffer(bytearray(frame), dtype)
    array = np.frombuffer(frame, dtype)
    return array if array.flags.aligned else array.copy()


def _reshaped(flat: Array, shape: tuple[int, ...]) -> Array:
    try:
        return flat.reshape(shape)
    except (ValueError, OverflowError):
        raise MalformedFrame(f"no array has the shape {shape}") from None
