"""The search for each row's grid, in Triton.

A program works on some rows. A row is ``places`` stripes; stripe ``i`` of all rows is tile ``i`` of a tuple, one line
of the tile for each row. ``width`` is that of a stripe, tiles may be wider. Numbers of which there is one per row are
vectors.
"""

from __future__ import annotations

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

from holdfast.kernels.quantize.scheme import KEPT, REFITS

_REFITS = tl.constexpr(REFITS)
_SLOPE = tl.constexpr(KEPT - (1 << 32))  # as a signed number
_WORST = tl.constexpr(0x7FFF_FFFF_FFFF_FFFF)
_ROUND = tl.constexpr(8388608.0)  # 2^23: from there on, single precision has no fractions


# Triton reads annotations as code of the kernel: only its own may stand there.
@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def nearest(x, top):  # type: ignore[no-untyped-def]
    """The nearest integer from 0 to ``top``, an even one from the middle."""
    x = tl.minimum(tl.maximum(x, 0.0), top)
    return (x + _ROUND) - _ROUND


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def only_inside(tile, place: tl.constexpr, dim: tl.constexpr, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Zeros where the tile is wider than its stripe, or the stripe longer than the row."""
    if (place + 1) * width <= dim and tile.shape[1] == width:
        return tile
    column = tl.arange(0, tile.shape[1])
    return tl.where(((column < width) & (place * width + column < dim))[None, :], tile, 0.0)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _sums(  # type: ignore[no-untyped-def]
    units, slope, shift, top, dim: tl.constexpr, width: tl.constexpr, places: tl.constexpr
):
    """Over each row: of its codes, of their squares, and of their products with the row; all integers below 2^24."""
    codes = tl.zeros_like(units[0])
    squares, products = codes, codes
    for place in tl.static_range(places):
        unit = units[place]
        # Fused or not: this product is exact, and so are those of the sums.
        code = nearest(tl.fma(unit, slope[:, None], shift[:, None]), top)
        code = only_inside(code, place, dim, width)
        codes, squares, products = codes + code, tl.fma(code, code, squares), tl.fma(code, unit, products)
    return tl.sum(codes, axis=1), tl.sum(squares, axis=1), tl.sum(products, axis=1)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _keep_better(best, shared, own, sums, total, dim: tl.constexpr):  # type: ignore[no-untyped-def]
    """Least squares leave the row's variance less shared²/own: the larger that is, the better."""
    codes, squares, products = sums
    new_shared = dim * 1.0 * products - total * codes
    new_own = dim * 1.0 * squares - codes * codes
    gain, most = new_shared * new_shared * own, shared * shared * new_own
    better = (new_shared > 0) & (gain > most)
    return tl.where(better, codes, best), tl.where(better, new_shared, shared), tl.where(better, new_own, own)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def fit(  # type: ignore[no-untyped-def]
    units, total, low, high, lines, share, top,
    dim: tl.constexpr, width: tl.constexpr, places: tl.constexpr, finest: tl.constexpr, tries: tl.constexpr,
):  # fmt: skip
    """The best of several grids, each with the scale and zero that least squares give for its codes; then refits."""
    best, shared, own = tl.zeros_like(total), tl.zeros_like(total), tl.zeros_like(total) + 1.0
    for number in tl.static_range(tries):
        slope = tl.zeros_like(total) + tl.load(lines + 2 * number)
        shift = tl.zeros_like(total) + tl.load(lines + 2 * number + 1)
        sums = _sums(units, slope, shift, top, dim, width, places)
        best, shared, own = _keep_better(best, shared, own, sums, total, dim)
    for _ in tl.static_range(_REFITS):
        slope = tl.div_rn(own, shared)
        slope = (slope.to(tl.int32, bitcast=True) & _SLOPE).to(tl.float32, bitcast=True)
        shift = (best - total * slope) * share
        sums = _sums(units, slope, shift, top, dim, width, places)
        best, shared, own = _keep_better(best, shared, own, sums, total, dim)
    step = tl.div_rn(shared, own)
    first = (total - step * best) * share
    unit = tl.div_rn(high - low, tl.zeros_like(total) + finest * 1.0)
    return step * unit, low + first * unit


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _loss(  # type: ignore[no-untyped-def]
    units, total, lines, top, below, both,
    dim: tl.constexpr, width: tl.constexpr, places: tl.constexpr, finest: tl.constexpr, bins: tl.constexpr,
):  # fmt: skip
    """The squared error of the grid that gives up so many bins, as an integer: scaled, less what all grids share."""
    slope = tl.zeros_like(total) + tl.load(lines + 2 * both)
    shift = -(below.to(tl.float32) * tl.load(lines + 2 * both + 1))
    codes, squares, products = _sums(units, slope, shift, top, dim, width, places)
    largest, size = top.to(tl.int64), below.to(tl.int64) * 0
    first, step = below.to(tl.int64) * largest, size + bins - both
    linear = first * total.to(tl.int64) + step * products.to(tl.int64)
    square = 2 * first * step * codes.to(tl.int64) + dim * first * first + step * step * squares.to(tl.int64)
    return (size + finest) * square - (size + 2 * bins) * largest * linear


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def narrow(  # type: ignore[no-untyped-def]
    units, total, low, high, lines, top,
    dim: tl.constexpr, width: tl.constexpr, places: tl.constexpr, finest: tl.constexpr, tries: tl.constexpr,
    bins: tl.constexpr,
):  # fmt: skip
    """Check-N-Run, section 4.2.3: give up a bin at the end where it costs less; keep the best range on the way."""
    below = tl.zeros_like(total).to(tl.int32)
    best_below, best_both = below, below
    best = _loss(units, total, lines, top, below, 0, dim, width, places, finest, bins)
    for both in range(1, tries):
        raised = _loss(units, total, lines, top, below + 1, both, dim, width, places, finest, bins)
        lowered = _loss(units, total, lines, top, below, both, dim, width, places, finest, bins)
        below += (raised < lowered).to(tl.int32)
        loss = tl.minimum(raised, lowered)
        better = loss < best
        best, best_below = tl.where(better, loss, best), tl.where(better, below, best_below)
        best_both = tl.where(better, both, best_both)
    bin_size = tl.div_rn(high - low, tl.zeros_like(total) + bins * 1.0)
    zero = low + best_below.to(tl.float32) * bin_size
    above = high - (best_both - best_below).to(tl.float32) * bin_size
    return tl.div_rn(above - zero, tl.zeros_like(total) + top), zero
