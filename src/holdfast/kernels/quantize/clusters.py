"""k-means of a row's values in Numba (Check-N-Run, section 4.2.2): sixteen rows at a time, one in each lane.

``c`` holds their centroids, in ascending order: lanes ``k`` are centroid ``k`` of the sixteen rows, in units of the
search first, on the row's grid of 8 bits then.
"""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.quantize.lanes import (
    FLOAT,
    INT,
    LANES,
    LANES_TYPE,
    MATRIX,
    VECTOR,
    Floats,
    Lanes,
    compiled,
    load,
    nearest,
    same,
    store,
    where_less,
)
from holdfast.kernels.quantize.packing import RECORDS, Records
from holdfast.kernels.quantize.scheme import CENTROIDS_AT, CONSTANT, ESCAPED, GRID_TOP
from holdfast.kernels.quantize.search import HIGH, INVERSE, LOW, ONE, TOTAL, ZERO, ZERO_POINT

_HALF, _GRID_TOP = np.float32(0.5), np.float32(GRID_TOP)


@compiled(LANES_TYPE, LANES_TYPE, LANES_TYPE, returns=LANES_TYPE)
def _mean(total: Lanes, members: Lanes, otherwise: Lanes) -> Lanes:
    return where_less(same(ZERO), members, total / members, otherwise)


@compiled(VECTOR, INT, MATRIX, MATRIX)
def _move_centroids(u: Floats, dim: int, m: Floats, c: Floats) -> None:
    """One of Lloyd's iterations: each centroid to the mean of the values that are nearest to it, if there are any.

    Those lie between two middles, so that their number and sum are differences of what lies above each. All of these
    are integers that single precision holds.
    """
    zero, one, half = same(ZERO), same(ONE), same(_HALF)
    centroid, members, total = load(c, 0), same(np.float32(dim)), load(m, TOTAL)
    for number in range(1, c.shape[0]):
        following, members_above, total_above = load(c, number), zero, zero
        middle = (centroid + following) * half
        for value in range(dim):
            unit = load(u, value)
            members_above += where_less(middle, unit, one, zero)
            total_above += where_less(middle, unit, unit, zero)
        store(c, number - 1, _mean(total - total_above, members - members_above, centroid))
        centroid, members, total = following, members_above, total_above
    store(c, c.shape[0] - 1, _mean(total, members, centroid))


@compiled(VECTOR, INT, MATRIX, MATRIX, MATRIX, INT)
def cluster(u: Floats, dim: int, m: Floats, c: Floats, starts: Floats, iterations: int) -> None:
    """The centroids of each row, in units."""
    for number in range(c.shape[0]):
        store(c, number, same(starts[number, 0]))
    for _ in range(iterations):
        _move_centroids(u, dim, m, c)


@compiled(MATRIX, MATRIX, FLOAT)
def place_on_grid(m: Floats, c: Floats, finest: np.float32) -> None:
    """Make the centroids the nearest codes of each row's grid of 8 bits."""
    low, zero_point, inverse, zero, top = (
        load(m, LOW),
        load(m, ZERO_POINT),
        load(m, INVERSE),
        same(ZERO),
        same(_GRID_TOP),
    )
    unit = (load(m, HIGH) - low) / same(finest)
    for number in range(c.shape[0]):
        place = nearest((low + load(c, number) * unit - zero_point) * inverse)
        place = where_less(zero, place, place, zero)
        store(c, number, where_less(place, top, place, top))


@compiled(MATRIX, MATRIX, MATRIX, MATRIX)
def find_nearest(block: Floats, codes: Floats, m: Floats, c: Floats) -> None:
    """The numbers of the nearest centroids, ready to be packed; the block's values become places on the grid."""
    for lane in range(LANES):
        zero, inverse = m[ZERO_POINT, lane], m[INVERSE, lane]
        for value in range(block.shape[1]):
            block[lane, value] = (block[lane, value] - zero) * inverse
            codes[lane, value] = ZERO
        for number in range(1, c.shape[0]):
            middle = (c[number - 1, lane] + c[number, lane]) * _HALF
            for value in range(block.shape[1]):
                codes[lane, value] += ONE if block[lane, value] > middle else ZERO
        m[ZERO_POINT, lane], m[INVERSE, lane] = ZERO, ONE


@compiled(RECORDS, INT, INT, MATRIX)
def put_centroids(out: Records, first: int, count: int, c: Floats) -> None:
    """Write the centroids of ``count`` rows to the records from ``first`` on."""
    for lane in range(count):
        for number in range(c.shape[0]):
            out[first + lane, CENTROIDS_AT + number] = np.uint8(np.int32(c[number, lane]))


@compiled(types.Array(types.uint8, 2, "C", readonly=True), MATRIX)
def to_centroids(records: Records, rows: Floats) -> None:
    """Replace the codes of unpacked rows by what they stand for; escaped and constant rows are not codes."""
    words = np.empty(2, np.uint32)
    numbers = words.view(np.float32)
    for row in range(rows.shape[0]):
        field = np.uint32(records[row, 0]) | (np.uint32(records[row, 1]) << 8)
        if field == CONSTANT or field == ESCAPED:  # noqa: SIM109 - tuples are slower here
            continue
        words[0], words[1] = field << 15, (np.uint32(records[row, 2]) | (np.uint32(records[row, 3]) << 8)) << 16
        scale, zero = numbers[0], numbers[1]
        for value in range(rows.shape[1]):
            rows[row, value] = zero + scale * np.float32(records[row, CENTROIDS_AT + np.int64(rows[row, value])])
