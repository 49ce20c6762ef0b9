"""Numbers as header fields and codes as bytes, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.quantize.scheme import stripe

Each = NDArray[np.float32]  # one number per row
Fields = NDArray[np.uint32]  # one field per row
Bytes = NDArray[np.uint8]  # [rows, bytes]


def to_scale(field: Fields) -> Each:
    """A scale field is a positive float32 without its sign and its last 15 bits."""
    return np.left_shift(field, 15, dtype=np.uint32).view(np.float32)


def to_zero(field: Fields) -> Each:
    """A zero field is a bfloat16."""
    return np.left_shift(field, 16, dtype=np.uint32).view(np.float32)


def scale_nearest(scale: Each) -> Fields:
    """The nearest scale field, an even one from the middle."""
    return _nearest(scale.view(np.uint32), 15)


def zero_nearest(zero: Each) -> Fields:
    """The nearest zero field, an even one from the middle."""
    return _nearest(zero.view(np.uint32), 16)


def _nearest(number: Fields, dropped: int) -> Fields:
    below_half, odd = np.uint32((1 << (dropped - 1)) - 1), (number >> np.uint32(dropped)) & np.uint32(1)
    return (number + below_half + odd) >> np.uint32(dropped)


def scale_up(scale: Each) -> Fields:
    """The next scale field that is not smaller."""
    return (scale.view(np.uint32) + np.uint32(0x7FFF)) >> np.uint32(15)


def zero_down(zero: Each) -> Fields:
    """The next zero field that is not larger."""
    number = zero.view(np.uint32)
    return (number + (number >> np.uint32(31)) * np.uint32(0xFFFF)) >> np.uint32(16)


def pack(codes: NDArray[np.uint8], bits: int) -> Bytes:
    """``[rows, dim]`` codes as ``[rows, code_bytes]``: value ``i`` goes to byte ``i mod stripe``."""
    if bits == 8:
        return codes
    width = stripe(codes.shape[1], bits)
    if bits != 3:
        return _interleave(codes, width, bits)
    low, high = codes & np.uint8(3), codes >> np.uint8(2)
    halves = _interleave(high, width, 1)
    return np.concatenate([_interleave(low, width, 2), _interleave(halves, (width + 1) // 2, 4)], axis=1)


def unpack(packed: Bytes, dim: int, bits: int) -> NDArray[np.uint8]:
    """The codes back."""
    if bits == 8:
        return packed
    if bits != 3:
        return _spread(packed, dim, bits)
    width = stripe(dim, bits)
    high = _spread(_spread(packed[:, width:], width, 4), dim, 1)
    return _spread(packed[:, :width], dim, 2) | high << np.uint8(2)


def _interleave(codes: NDArray[np.uint8], width: int, bits: int) -> Bytes:
    packed = np.zeros((len(codes), width), dtype=np.uint8)
    for place, start in enumerate(range(0, codes.shape[1], width)):
        part = codes[:, start : start + width]
        packed[:, : part.shape[1]] |= part << np.uint8(bits * place)
    return packed


def _spread(packed: Bytes, dim: int, bits: int) -> NDArray[np.uint8]:
    places = range(-(-dim // packed.shape[1]))
    stripes = [(packed >> np.uint8(bits * place)) & np.uint8((1 << bits) - 1) for place in places]
    return np.concatenate(stripes, axis=1)[:, :dim]


def to_bytes(fields: Fields, length: int) -> Bytes:
    """Little-endian bytes ``[rows, length]``."""
    return fields.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :length]


def from_bytes(fields: Bytes) -> Fields:
    """The numbers of ``[rows, length]`` little-endian bytes."""
    padded = np.zeros((len(fields), 4), dtype=np.uint8)
    padded[:, : fields.shape[1]] = fields
    return padded.view("<u4").ravel().astype(np.uint32)
