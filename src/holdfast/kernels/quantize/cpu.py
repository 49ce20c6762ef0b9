"""Quantizers in Numba: one thread, without the GIL. Importing this module compiles them, or loads their cache."""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.quantize.clusters import cluster, find_nearest, place_on_grid, put_centroids, to_centroids
from holdfast.kernels.quantize.lanes import FLOAT, INT, LANES, MATRIX, ROWS, VECTOR, Floats, compiled
from holdfast.kernels.quantize.logarithmic import find_codes, to_values
from holdfast.kernels.quantize.packing import RECORDS, Records, pack
from holdfast.kernels.quantize.plain import encode_plain_rows, plain_rows_fit
from holdfast.kernels.quantize.scheme import (
    CONSTANT,
    CONSTANT_BYTES,
    ESCAPED,
    GRID_TOP,
    LARGEST,
    OFFSET_SHARE,
    SMALLEST,
    Method,
    Scheme,
    first_centroids,
    greedy_lines,
    resolution,
    starts,
)
from holdfast.kernels.quantize.search import (
    FINITE,
    HIGH,
    INVERSE,
    LOW,
    NAMES,
    ONE,
    SCALE,
    ZERO,
    ZERO_POINT,
    find_bounds,
    fit,
    narrow,
    read_block,
    to_units,
    transpose,
)
from holdfast.kernels.quantize.unpacking import unpack

Fields = NDArray[np.uint32]
Plan = NDArray[np.int64]

_SYMMETRIC, _ASYMMETRIC, _GREEDY, _FITTED, _LOGARITHMIC, _KMEANS = range(len(Method))
_NUMBERS = {method: number for number, method in enumerate(Method)}
_METHOD, _BITS, _HEADER, _FINEST, _BINS, _ITERATIONS, _PLAIN = range(7)  # of a plan
_PLAN, _FIELDS = types.Array(types.int64, 1, "C"), types.Array(types.uint32, 2, "C")
_SMALLEST, _LARGEST, _OFFSET_SHARE = np.float32(SMALLEST), np.float32(LARGEST), np.float32(OFFSET_SHARE)
_TWO, _GRID_TOP = np.float32(2), np.float32(GRID_TOP)
_NO_LINES = np.zeros((1, 2), np.float32)


def encode(rows: Floats, scheme: Scheme, out: Records) -> int:
    """Write one record per row; rows that no grid serves get an empty one whose first field is ``ESCAPED``.

    Returns how many those are.
    """
    lines, dim = _NO_LINES, rows.shape[1]
    if scheme.method is Method.GREEDY:
        lines = greedy_lines(scheme, dim)
    elif scheme.method is Method.FITTED:
        lines = starts(scheme.bits, dim)
    elif scheme.method is Method.KMEANS:
        lines = first_centroids(scheme.bits, dim)
    layout, search = (scheme.bits, scheme.header_bytes), (resolution(dim), scheme.num_bins, scheme.iterations)
    plain = scheme.method is Method.ASYMMETRIC and plain_rows_fit(dim, scheme.bits)
    plan = np.array([_NUMBERS[scheme.method], *layout, *search, plain], np.int64)
    escaped: int = _encode(rows, out, plan, lines)
    return escaped


def decode(records: Records, scheme: Scheme, dim: int, out: Floats) -> None:
    """Write the rows back; those of escaped records are zero."""
    unpack(records, out, _NUMBERS[scheme.method], scheme.bits, scheme.header_bytes)
    if scheme.method is Method.LOGARITHMIC:
        to_values(records, out, scheme.top)
    elif scheme.method is Method.KMEANS:
        to_centroids(records, out)


@compiled(MATRIX, INT, FLOAT)
def _choose_grid(m: Floats, method: int, top: np.float32) -> None:
    """Scale and zero point as they are stored: what the search found to the nearest, plain ranges to the outside."""
    bits = m.view(np.uint32)
    if method == _SYMMETRIC:
        for lane in range(LANES):
            m[SCALE, lane] = _TWO * max(-m[LOW, lane], m[HIGH, lane]) / top
    elif method == _ASYMMETRIC:
        for lane in range(LANES):
            down = bits[LOW, lane] + (0xFFFF if bits[LOW, lane] >> 31 else 0)
            bits[ZERO_POINT, lane] = down & 0xFFFF_0000
        for lane in range(LANES):
            m[SCALE, lane] = (m[HIGH, lane] - m[ZERO_POINT, lane]) / top
    else:
        for lane in range(LANES):
            nearest = bits[ZERO_POINT, lane] + 0x7FFF + ((bits[ZERO_POINT, lane] >> 16) & 1)
            bits[ZERO_POINT, lane] = nearest & 0xFFFF_0000
    for lane in range(LANES):
        more = 0x3FFF + ((bits[SCALE, lane] >> 15) & 1) if method >= _GREEDY else 0x7FFF
        bits[SCALE, lane] = (bits[SCALE, lane] + more) & 0xFFFF_8000
    for lane in range(LANES):
        m[INVERSE, lane] = ONE / m[SCALE, lane]
        if method == _SYMMETRIC:
            m[ZERO_POINT, lane] = -m[SCALE, lane] * (top / _TWO)


@compiled(MATRIX, _FIELDS, INT)
def _choose_fields(m: Floats, fields: Fields, method: int) -> None:
    """Scale field and zero field of each row's header."""
    bits, offset_share = m.view(np.uint32), ZERO if method == _SYMMETRIC else _OFFSET_SHARE
    for lane in range(LANES):
        spread, largest = m[HIGH, lane] - m[LOW, lane], max(-m[LOW, lane], m[HIGH, lane])
        beyond = (largest > _LARGEST) | (spread < _SMALLEST) | (spread < largest * offset_share)
        constant = (spread == ZERO) & (m[FINITE, lane] == ZERO)
        escaped = (m[FINITE, lane] != ZERO) | (beyond & (spread != ZERO))
        field = bits[SCALE, lane] >> np.uint32(15)
        fields[0, lane] = ESCAPED if escaped else CONSTANT if constant else field
        fields[1, lane] = bits[ZERO_POINT, lane] >> np.uint32(16)


@compiled(RECORDS, INT, INT, MATRIX, _FIELDS, INT, returns=INT)
def _put_headers(out: Records, first: int, count: int, m: Floats, fields: Fields, header: int) -> int:
    """Write the headers; empty the records of rows without codes. Returns how many are escaped."""
    bits, escaped = m.view(np.uint32), 0
    for lane in range(count):
        row, field = first + lane, fields[0, lane]
        out[row, 0], out[row, 1] = np.uint8(field), np.uint8(field >> 8)
        if field == CONSTANT or field == ESCAPED:  # noqa: SIM109 - tuples are slower here
            out[row, 2:] = 0
        elif header > 2:
            out[row, 2], out[row, 3] = np.uint8(fields[1, lane]), np.uint8(fields[1, lane] >> 8)
        if field == CONSTANT:
            for byte in range(4):
                out[row, 2 + byte] = np.uint8(bits[LOW, lane] >> np.uint32(8 * byte))
        escaped += 1 if field == ESCAPED else 0
    return escaped


@compiled(ROWS, _PLAN, MATRIX, VECTOR, MATRIX, _FIELDS)
def _find_grids(block: Floats, plan: Plan, lines: Floats, u: Floats, m: Floats, fields: Fields) -> None:
    """Each row's grid, and the header fields that say it."""
    method, dim, top = plan[_METHOD], block.shape[1], np.float32((1 << plan[_BITS]) - 1)
    find_bounds(block, m)
    if method >= _GREEDY:
        transpose(block, u)
        to_units(u, dim, m, np.float32(plan[_FINEST]))
    if method == _GREEDY:
        narrow(u, dim, m, top, plan[_FINEST], lines, plan[_BINS])
    elif method == _FITTED:
        fit(u, dim, m, top, np.float32(plan[_FINEST]), lines)
    _choose_grid(m, method, top)
    _choose_fields(m, fields, method)


@compiled(MATRIX, _PLAN, MATRIX, VECTOR, MATRIX, _FIELDS, MATRIX)
def _find_clusters(block: Floats, plan: Plan, starts: Floats, u: Floats, m: Floats, fields: Fields, c: Floats) -> None:
    """Each row's centroids, on its plain grid of 8 bits, the header fields that say this grid, and codes in ``u``."""
    dim, finest = block.shape[1], np.float32(plan[_FINEST])
    find_bounds(block, m)
    transpose(block, u)
    to_units(u, dim, m, finest)
    cluster(u, dim, m, c, starts, plan[_ITERATIONS])
    _choose_grid(m, _ASYMMETRIC, _GRID_TOP)
    _choose_fields(m, fields, _ASYMMETRIC)
    place_on_grid(m, c, finest)
    find_nearest(block, u.reshape((LANES, dim)), m, c)


@compiled(ROWS, RECORDS, INT, INT, _PLAN, MATRIX, _FIELDS, returns=INT)
def _write(block: Floats, out: Records, first: int, count: int, plan: Plan, m: Floats, fields: Fields) -> int:
    if out.shape[1] == CONSTANT_BYTES:  # codes may not fill it
        out[first : first + count] = 0
    pack(block, out, first, count, plan[_HEADER], plan[_BITS], m)
    return _put_headers(out, first, count, m, fields, plan[_HEADER])


@compiled(MATRIX, RECORDS, INT, INT, _PLAN, MATRIX, VECTOR, MATRIX, _FIELDS, MATRIX, returns=INT)
def _encode_block(
    block: Floats, out: Records, first: int, count: int, plan: Plan, lines: Floats,
    u: Floats, m: Floats, fields: Fields, c: Floats,
) -> int:  # fmt: skip
    if plan[_METHOD] == _LOGARITHMIC:
        codes = u.reshape((LANES, block.shape[1]))
        find_codes(block, codes, fields, m, (1 << plan[_BITS]) - 1)
        return _write(codes, out, first, count, plan, m, fields)
    if plan[_METHOD] == _KMEANS:
        _find_clusters(block, plan, lines, u, m, fields, c)
        put_centroids(out, first, count, c)
        return _write(u.reshape((LANES, block.shape[1])), out, first, count, plan, m, fields)
    _find_grids(block, plan, lines, u, m, fields)
    return _write(block, out, first, count, plan, m, fields)


@compiled(ROWS, RECORDS, _PLAN, MATRIX, returns=INT)
def _encode(rows: Floats, out: Records, plan: Plan, lines: Floats) -> int:
    (count, dim), escaped, first = rows.shape, 0, 0
    block, u = np.empty((LANES, dim), np.float32), np.empty(LANES * dim, np.float32)
    m, fields = np.empty((NAMES, LANES), np.float32), np.empty((2, LANES), np.uint32)
    c = np.empty((lines.shape[0], LANES), np.float32)
    while first < count:
        if plan[_PLAIN]:
            first = encode_plain_rows(rows, out, first, plan[_BITS])
        left = min(LANES, count - first)
        if left == LANES and plan[_METHOD] <= _ASYMMETRIC:  # every row is read once, in order: no need for a copy
            here = rows[first : first + LANES]
            _find_grids(here, plan, lines, u, m, fields)
            escaped += _write(here, out, first, left, plan, m, fields)
        elif left > 0:
            read_block(rows, first, block)
            escaped += _encode_block(block, out, first, left, plan, lines, u, m, fields, c)
        first += LANES
    return escaped
