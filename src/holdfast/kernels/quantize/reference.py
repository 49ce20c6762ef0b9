"""Quantizers in NumPy: what the faster ones must equal, byte for byte, and what runs where Numba is missing.

Every operation is one IEEE single-precision operation, except the sums of the search: their terms are integers so
small that every partial sum is exact, and so are the products that a compiler might fuse with an addition. So neither
the order of summation nor fused multiply-add can change a bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.quantize import reference_bits as bits
from holdfast.kernels.quantize.reference_bits import Fields
from holdfast.kernels.quantize.reference_clusters import cluster, nearest
from holdfast.kernels.quantize.reference_search import Bounds, Each, Rows, fit, narrow, to_units
from holdfast.kernels.quantize.scheme import (
    CENTROIDS_AT,
    CONSTANT,
    ESCAPED,
    GRID_TOP,
    LARGEST,
    OFFSET_SHARE,
    SMALLEST,
    Method,
    Scheme,
    code_bytes,
    resolution,
)

Records = NDArray[np.uint8]  # [rows, record_bytes]

_INFINITE = np.int32(0x7F80_0000)  # the bit pattern of infinity
_BLOCK = 8192  # rows at a time: bounds the memory that the steps in between take


def encode(rows: Rows, scheme: Scheme, out: Records) -> int:
    """Write one record per row; rows that no grid serves get an empty one whose first field is ``ESCAPED``.

    Returns how many those are.
    """
    encode_block = _ENCODERS.get(scheme.method, _encode_affine)
    with np.errstate(all="ignore"):  # rows that are not finite are set aside, but computed with all the same
        for start in range(0, len(rows), _BLOCK):
            encode_block(rows[start : start + _BLOCK], scheme, out[start : start + _BLOCK])
    return int(np.count_nonzero(bits.from_bytes(out[:, :2]) == ESCAPED))


def decode(records: Records, scheme: Scheme, dim: int, out: Rows) -> None:
    """Write the rows back; those of escaped records are zero."""
    decode_block = _DECODERS.get(scheme.method, _decode_affine)
    with np.errstate(all="ignore"):
        for start in range(0, len(records), _BLOCK):
            part, rows = records[start : start + _BLOCK], out[start : start + _BLOCK]
            rows[:] = decode_block(part, scheme, _unpacked(part, scheme, dim))
            _decode_special(part, rows)


def _encode_affine(rows: Rows, scheme: Scheme, out: Records) -> None:
    found = _bounds(rows, scheme.method)
    scale16, zero16 = _header(rows, scheme, found)
    scale = bits.to_scale(scale16)
    zero = _mirrored(scale, scheme) if scheme.method is Method.SYMMETRIC else bits.to_zero(zero16)
    inverse = np.float32(1) / scale
    codes = np.rint((rows - zero[:, None]) * inverse[:, None]).clip(0, scheme.top)
    _write(out, scheme, found, (scale16, zero16), codes)


def _bounds(rows: Rows, method: Method) -> Bounds:
    low, high = rows.min(axis=1) + np.float32(0), rows.max(axis=1) + np.float32(0)  # never -0.0
    largest, spread = np.maximum(-low, high), high - low
    finite = np.isfinite(rows).all(axis=1)
    beyond = (largest > LARGEST) | (spread < SMALLEST)
    if method is not Method.SYMMETRIC:
        beyond |= spread < largest * np.float32(OFFSET_SHARE)
    constant = finite & (spread == 0)
    return Bounds(low=low, high=high, escaped=~finite | (beyond & ~constant), constant=constant)


def _header(rows: Rows, scheme: Scheme, found: Bounds) -> tuple[Fields, Fields]:
    """The scale and zero fields of every row's grid: to the outside of plain ranges, else to the nearest."""
    top = np.float32(scheme.top)
    if scheme.method is Method.SYMMETRIC:
        largest = np.maximum(-found.low, found.high)
        return bits.scale_up(np.float32(2) * largest / top), np.zeros(len(rows), dtype=np.uint32)
    if scheme.method is Method.ASYMMETRIC:
        return _outside(found, top)
    search = narrow if scheme.method is Method.GREEDY else fit
    grids = search(to_units(rows, found, np.float32(resolution(rows.shape[1]))), scheme, found)
    return bits.scale_nearest(grids.scale), bits.zero_nearest(grids.zero)


def _outside(found: Bounds, top: np.float32) -> tuple[Fields, Fields]:
    zero16 = bits.zero_down(found.low)
    return bits.scale_up((found.high - bits.to_zero(zero16)) / top), zero16


def _mirrored(scale: Each, scheme: Scheme) -> Each:
    return -scale * np.float32(scheme.top / 2)


def _encode_logarithmic(rows: Rows, scheme: Scheme, out: Records) -> None:
    """Code 0 is zero; the others are equal steps of the bit pattern from the smallest positive value to the largest."""
    values = rows + np.float32(0)  # never -0.0, whose pattern is negative
    patterns = values.view(np.int32)
    most, least = patterns.max(axis=1), np.where(patterns > 0, patterns, _INFINITE).min(axis=1)
    escaped = (patterns < 0).any(axis=1) | (most >= _INFINITE)
    constant = ~escaped & (patterns == patterns[:, :1]).all(axis=1)
    high = (most.astype(np.int64) + 0x7FFF) >> 15
    low = np.maximum(least.astype(np.int64) >> 15, 1)  # what is positive never becomes zero
    spread = np.maximum(high - low, 1) << 15  # one value that its field holds leaves no range
    inverse = np.float32(scheme.top - 1) / spread.astype(np.float32)
    first = (low << 15).astype(np.int32)[:, None]
    steps = (np.maximum(patterns, first) - first).astype(np.float32) * inverse[:, None]
    codes = np.where(patterns > 0, np.float32(1) + np.rint(steps), np.float32(0))
    found = Bounds(low=values[:, 0], high=values[:, 0], escaped=escaped, constant=constant)
    _write(out, scheme, found, (high.astype(np.uint32), low.astype(np.uint32)), codes)


def _encode_clusters(rows: Rows, scheme: Scheme, out: Records) -> None:
    """Centroids on the row's plain grid of 8 bits; of each value, the number of the nearest."""
    found, finest = _bounds(rows, scheme.method), np.float32(resolution(rows.shape[1]))
    centroids = cluster(to_units(rows, found, finest), scheme)
    header = _outside(found, np.float32(GRID_TOP))
    zero, inverse = bits.to_zero(header[1])[:, None], np.float32(1) / bits.to_scale(header[0])[:, None]
    exact = found.low[:, None] + centroids * (found.spread / finest)[:, None]
    places = np.rint((exact - zero) * inverse).clip(0, GRID_TOP)
    _write(out, scheme, found, header, nearest((rows - zero) * inverse, places))
    plain = ~(found.escaped | found.constant)
    out[plain, CENTROIDS_AT : scheme.header_bytes] = places[plain]


def _write(out: Records, scheme: Scheme, found: Bounds, header: tuple[Fields, Fields], codes: NDArray[Any]) -> None:
    plain = ~(found.escaped | found.constant)
    special = np.where(found.constant, CONSTANT, ESCAPED).astype(np.uint32)
    out[:, :2] = bits.to_bytes(np.where(plain, header[0], special), 2)
    out[:, 2:] = 0
    out[found.constant, 2:6] = bits.to_bytes(found.low[found.constant].view(np.uint32), 4)
    start = scheme.header_bytes
    if start > 2:
        out[plain, 2:4] = bits.to_bytes(header[1][plain], 2)
    stop = start + code_bytes(codes.shape[1], scheme.bits)
    out[plain, start:stop] = bits.pack(codes[plain].astype(np.uint8), scheme.bits)


def _unpacked(records: Records, scheme: Scheme, dim: int) -> Rows:
    start = scheme.header_bytes
    packed = records[:, start : start + code_bytes(dim, scheme.bits)]
    return bits.unpack(packed, dim, scheme.bits).astype(np.float32)


def _decode_affine(records: Records, scheme: Scheme, codes: Rows) -> Rows:
    scale = bits.to_scale(bits.from_bytes(records[:, :2]))
    mirrored = scheme.method is Method.SYMMETRIC
    zero = _mirrored(scale, scheme) if mirrored else bits.to_zero(bits.from_bytes(records[:, 2:4]))
    return zero[:, None] + scale[:, None] * codes


def _decode_logarithmic(records: Records, scheme: Scheme, codes: Rows) -> Rows:
    high, low = (bits.from_bytes(records[:, at : at + 2]).astype(np.int64) << 15 for at in (0, 2))
    step = (high - low).astype(np.float32) / np.float32(scheme.top - 1)
    patterns = low[:, None] + np.rint((codes - np.float32(1)) * step[:, None]).astype(np.int64)
    patterns = np.where(codes > 0, np.minimum(patterns, _INFINITE - 1), 0)
    return patterns.astype(np.int32).view(np.float32)


def _decode_clusters(records: Records, scheme: Scheme, codes: Rows) -> Rows:
    scale, zero = bits.to_scale(bits.from_bytes(records[:, :2])), bits.to_zero(bits.from_bytes(records[:, 2:4]))
    centroids = records[:, CENTROIDS_AT : scheme.header_bytes].astype(np.float32)
    return zero[:, None] + scale[:, None] * np.take_along_axis(centroids, codes.astype(np.intp), axis=1)


def _decode_special(records: Records, rows: Rows) -> None:
    """What has no codes."""
    field = bits.from_bytes(records[:, :2])
    constant = field == CONSTANT
    rows[constant] = bits.from_bytes(records[constant, 2:6]).view(np.float32)[:, None]
    rows[field == ESCAPED] = 0


_ENCODERS = {Method.LOGARITHMIC: _encode_logarithmic, Method.KMEANS: _encode_clusters}
_DECODERS = {Method.LOGARITHMIC: _decode_logarithmic, Method.KMEANS: _decode_clusters}
