"""The search for each row's grid, in Numba: sixteen rows at a time, one in each lane.

``u`` holds their values transposed: lanes ``i`` are value ``i`` of the sixteen rows. ``m`` holds what is known of each
row, under the names below.
"""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.quantize.lane_bits import greatest_of_each, least_of_each, transpose_square
from holdfast.kernels.quantize.lanes import (
    FLOAT,
    INT,
    LANES,
    LANES_TYPE,
    MATRIX,
    ROWS,
    VECTOR,
    Floats,
    Lanes,
    compiled,
    load,
    load_row,
    nearest,
    product_plus,
    same,
    store,
    where_less,
)
from holdfast.kernels.quantize.scheme import KEPT, REFITS

Numbers = NDArray[np.int64]

LOW, HIGH, FINITE, TOTAL = range(4)  # both ends of the row's range, 0 or NaN, the sum of its units
SLOPE, SHIFT, CODES, SQUARES, PRODUCTS = range(4, 9)  # a grid tried: code = slope·u + shift; sums over the row
BEST, SHARED, OWN = range(9, 12)  # the best codes' sum, their covariance with the row, their variance (times dim²)
SCALE, ZERO_POINT, INVERSE = range(12, 15)  # the grid chosen
_LOWS, _HIGHS = 15, 15 + LANES  # room for lanes of each row, from which its bounds are found
NAMES = 15 + 2 * LANES

ZERO, ONE = np.float32(0), np.float32(1)
_KEPT = np.uint32(KEPT)
_WORST = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_NUMBERS = types.Array(types.int64, 2, "C")
_BELOW, _RAISED, _LOWERED, _LEAST, _BEST_BELOW, _BEST_BOTH = range(6)  # of the greedy search, ``[name, lane]``


@compiled(ROWS, INT, MATRIX)
def read_block(rows: Floats, first: int, block: Floats) -> None:
    """Copy sixteen rows; where fewer are left, the last one stands for the others.

    Memory is read fast in its own order only, which the transposition is not.
    """
    dim = rows.shape[1]
    if first + LANES <= rows.shape[0]:
        for line in range(dim):
            store(block, line, load(rows, first // LANES * dim + line))
    else:
        for lane in range(LANES):
            block[lane] = rows[min(first + lane, rows.shape[0] - 1)]


@compiled(ROWS, VECTOR)
def transpose(block: Floats, u: Floats) -> None:
    """The block's values into ``u``."""
    square = block.shape[1] // LANES * LANES
    for value in range(0, square, LANES):
        transpose_square(u, block, value)
    for lane in range(LANES):
        for value in range(square, block.shape[1]):
            u[LANES * value + lane] = block[lane, value]


@compiled(ROWS, INT, MATRIX)
def _finish_bounds(block: Floats, whole: int, m: Floats) -> None:
    """Add the values after the last whole lanes; find out which rows are not finite, where one may not be."""
    doubtful = False
    for lane in range(LANES):
        doubtful |= m[FINITE, lane] != ZERO
        m[FINITE, lane] = ZERO
    if doubtful or whole < block.shape[1]:
        for lane in range(LANES):
            for value in range(0 if doubtful else whole, block.shape[1]):
                x = block[lane, value]
                m[LOW, lane] = x if x < m[LOW, lane] else m[LOW, lane]
                m[HIGH, lane] = x if x > m[HIGH, lane] else m[HIGH, lane]
                m[FINITE, lane] += x * ZERO
    for lane in range(LANES):
        m[LOW, lane] += ZERO  # never -0.0
        m[HIGH, lane] += ZERO


@compiled(ROWS, MATRIX)
def find_bounds(block: Floats, m: Floats) -> None:
    """Both ends of each row's range; FINITE is 0 where all its values are, else NaN."""
    zero, whole, finite = same(ZERO), block.shape[1] // LANES * LANES, same(ZERO)
    for lane in range(LANES):
        first = load_row(block, lane, 0) if whole else same(block[lane, 0])
        lows, highs, checks = first, first, first
        for value in range(LANES, whole, LANES):
            x = load_row(block, lane, value)
            lows, highs = where_less(x, lows, x, lows), where_less(highs, x, x, highs)
            checks += x
        store(m, _LOWS + lane, lows)
        store(m, _HIGHS + lane, highs)
        finite += checks * zero
    store(m, LOW, least_of_each(m, _LOWS))
    store(m, HIGH, greatest_of_each(m, _HIGHS))
    store(m, FINITE, finite)
    _finish_bounds(block, whole, m)


@compiled(VECTOR, INT, MATRIX, FLOAT)
def to_units(u: Floats, dim: int, m: Floats, finest: np.float32) -> None:
    """The rows as integers from 0 to ``finest``, and their sums."""
    low, total = load(m, LOW), same(ZERO)
    factor = same(finest) / (load(m, HIGH) - low)
    for value in range(dim):
        unit = nearest((load(u, value) - low) * factor)
        store(u, value, unit)
        total += unit
    store(m, TOTAL, total)


@compiled(LANES_TYPE, LANES_TYPE, LANES_TYPE, LANES_TYPE, returns=LANES_TYPE)
def _code(unit: Lanes, slope: Lanes, shift: Lanes, top: Lanes) -> Lanes:
    code, zero = nearest(product_plus(unit, slope, shift)), same(ZERO)
    code = where_less(zero, code, code, zero)
    return where_less(code, top, code, top)


@compiled(VECTOR, INT, MATRIX, FLOAT)
def _sum(u: Floats, dim: int, m: Floats, top: np.float32) -> None:
    """Over each row: of its codes, of their squares, and of their products with the row.

    All of these are integers below 2^24, and slopes have so few bits that their products with units are exact.
    """
    slope, shift, limit = load(m, SLOPE), load(m, SHIFT), same(top)
    codes, squares, products = same(ZERO), same(ZERO), same(ZERO)
    for value in range(dim):
        unit = load(u, value)
        code = _code(unit, slope, shift, limit)
        codes += code
        squares = product_plus(code, code, squares)
        products = product_plus(code, unit, products)
    store(m, CODES, codes)
    store(m, SQUARES, squares)
    store(m, PRODUCTS, products)


@compiled(MATRIX, FLOAT)
def _keep_better(m: Floats, dim: np.float32) -> None:
    """Least squares leave the row's variance less covariance²/variance: the larger that is, the better."""
    size, codes = same(dim), load(m, CODES)
    shared = size * load(m, PRODUCTS) - load(m, TOTAL) * codes
    own = size * load(m, SQUARES) - codes * codes
    gain, most = shared * shared * load(m, OWN), load(m, SHARED) * load(m, SHARED) * own
    gain = where_less(same(ZERO), shared, gain, same(-ONE))
    store(m, BEST, where_less(most, gain, codes, load(m, BEST)))
    store(m, SHARED, where_less(most, gain, shared, load(m, SHARED)))
    store(m, OWN, where_less(most, gain, own, load(m, OWN)))


@compiled(MATRIX, FLOAT)
def _refit(m: Floats, share: np.float32) -> None:
    """The grid that least squares give for the best codes."""
    store(m, SLOPE, load(m, OWN) / load(m, SHARED))
    bits = m.view(np.uint32)
    for lane in range(LANES):
        bits[SLOPE, lane] &= _KEPT
    store(m, SHIFT, (load(m, BEST) - load(m, TOTAL) * load(m, SLOPE)) * same(share))


@compiled(VECTOR, INT, MATRIX, FLOAT, FLOAT, MATRIX)
def fit(u: Floats, dim: int, m: Floats, top: np.float32, finest: np.float32, lines: Floats) -> None:
    """The best of several grids, each with the scale and zero that least squares give for its codes; then refits."""
    size, share = np.float32(dim), ONE / np.float32(dim)
    store(m, BEST, same(ZERO))
    store(m, SHARED, same(ZERO))
    store(m, OWN, same(ONE))
    for start in range(lines.shape[0]):
        store(m, SLOPE, same(lines[start, 0]))
        store(m, SHIFT, same(lines[start, 1]))
        _sum(u, dim, m, top)
        _keep_better(m, size)
    for _ in range(REFITS):
        _refit(m, share)
        _sum(u, dim, m, top)
        _keep_better(m, size)
    step, low = load(m, SHARED) / load(m, OWN), load(m, LOW)
    first = (load(m, TOTAL) - step * load(m, BEST)) * same(share)
    unit = (load(m, HIGH) - low) / same(finest)
    store(m, SCALE, step * unit)
    store(m, ZERO_POINT, low + first * unit)


@compiled(MATRIX, _NUMBERS, INT, INT, INT, INT, INT, INT)
def _compute_losses(m: Floats, n: Numbers, dim: int, top: int, finest: int, bins: int, both: int, more: int) -> None:
    """The squared error of each row's grid, as an integer: scaled, less what all grids share."""
    step = bins - both
    for lane in range(LANES):
        first = (n[_BELOW, lane] + more) * top
        linear = first * np.int64(m[TOTAL, lane]) + step * np.int64(m[PRODUCTS, lane])
        square = 2 * first * step * np.int64(m[CODES, lane]) + dim * first * first
        square += step * step * np.int64(m[SQUARES, lane])
        n[_RAISED if more else _LOWERED, lane] = finest * square - 2 * bins * top * linear


@compiled(_NUMBERS, INT)
def _step(n: Numbers, both: int) -> None:
    """Go the cheaper way, and remember the best place on it."""
    for lane in range(LANES):
        up = n[_RAISED, lane] < n[_LOWERED, lane]
        n[_BELOW, lane] += 1 if up else 0
        loss = n[_RAISED, lane] if up else n[_LOWERED, lane]
        better = loss < n[_LEAST, lane]
        n[_LEAST, lane] = loss if better else n[_LEAST, lane]
        n[_BEST_BELOW, lane] = n[_BELOW, lane] if better else n[_BEST_BELOW, lane]
        n[_BEST_BOTH, lane] = both if better else n[_BEST_BOTH, lane]


@compiled(VECTOR, INT, MATRIX, FLOAT, INT, MATRIX, INT)
def narrow(u: Floats, dim: int, m: Floats, top: np.float32, finest: int, lines: Floats, bins: int) -> None:
    """Check-N-Run, section 4.2.3: give up a bin at the end where it costs less; keep the best range on the way."""
    n = np.zeros((6, LANES), np.int64)
    n[_LEAST, :] = _WORST
    n[_RAISED, :] = _WORST
    for both in range(lines.shape[0]):
        store(m, SLOPE, same(lines[both, 0]))
        for more in range(2 if both else 1):
            for lane in range(LANES):
                m[SHIFT, lane] = -(np.float32(n[_BELOW, lane] + more) * lines[both, 1])
            _sum(u, dim, m, top)
            _compute_losses(m, n, dim, int(top), finest, bins, both, more)
        _step(n, both)
    for lane in range(LANES):
        bin_size = (m[HIGH, lane] - m[LOW, lane]) / np.float32(bins)
        low = m[LOW, lane] + np.float32(n[_BEST_BELOW, lane]) * bin_size
        high = m[HIGH, lane] - np.float32(n[_BEST_BOTH, lane] - n[_BEST_BELOW, lane]) * bin_size
        m[SCALE, lane], m[ZERO_POINT, lane] = (high - low) / top, low
