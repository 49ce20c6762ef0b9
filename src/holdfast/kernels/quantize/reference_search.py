"""The search for each row's grid, in NumPy (see ``reference``)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.quantize.scheme import KEPT, REFITS, Scheme, greedy_lines, resolution, starts

Rows = NDArray[np.float32]  # [rows, dim]
Each = NDArray[np.float32]  # one number per row
Counts = NDArray[np.int64]  # one number per row


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What decides how a row is stored."""

    low: Each
    high: Each
    escaped: NDArray[np.bool_]
    constant: NDArray[np.bool_]

    @property
    def spread(self) -> Each:
        """The row's range."""
        return self.high - self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Grids:
    """Of each row: the value of code 0, and what one more adds."""

    scale: Each
    zero: Each


def to_units(rows: Rows, found: Bounds, finest: np.float32) -> Rows:
    """The row as integers from 0 to ``finest``."""
    factor = finest / found.spread
    return np.rint((rows - found.low[:, None]) * factor[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Over a row: of its codes, of their squares, and of their products with the row."""

    codes: Each
    squares: Each
    products: Each


def _sums(units: Rows, inverse: Each, offset: Each, top: np.float32) -> Sums:
    codes = np.rint(units * inverse[:, None] + offset[:, None]).clip(np.float32(0), top)
    return Sums(codes=_total(codes), squares=_total(codes * codes), products=_total(codes * units))


def _total(values: Rows) -> Each:
    total: NDArray[np.float64] = values.sum(axis=1, dtype=np.float64)
    return total.astype(np.float32)  # exact, both times


def narrow(units: Rows, scheme: Scheme, found: Bounds) -> Grids:
    """Check-N-Run, section 4.2.3: give up a bin at the end where it costs less; keep the best range on the way."""
    below = np.zeros(len(units), dtype=np.int64)
    best_below, best_both = below.copy(), below.copy()
    best = _losses(units, scheme, below, 0)
    for both in range(1, scheme.steps + 1):
        raised, lowered = _losses(units, scheme, below + 1, both), _losses(units, scheme, below, both)
        below += raised < lowered
        loss = np.minimum(raised, lowered)
        better = loss < best
        best, best_below = np.where(better, loss, best), np.where(better, below, best_below)
        best_both = np.where(better, both, best_both)
    top, bin_size = np.float32(scheme.top), found.spread / np.float32(scheme.num_bins)
    zero = found.low + best_below.astype(np.float32) * bin_size
    high = found.high - (best_both - best_below).astype(np.float32) * bin_size
    return Grids(scale=(high - zero) / top, zero=zero)


def _losses(units: Rows, scheme: Scheme, below: Counts, both: int) -> Counts:
    """The squared error of the grid that gives up so many bins, as an integer: scaled, less what all grids share."""
    slope, per_bin = greedy_lines(scheme, units.shape[1])[both]
    shift = -(below.astype(np.float32) * per_bin)
    sums = _sums(units, np.full_like(shift, slope), shift, np.float32(scheme.top))
    dim, finest = units.shape[1], resolution(units.shape[1])
    total = _total(units).astype(np.int64)
    codes, squares = sums.codes.astype(np.int64), sums.squares.astype(np.int64)
    first, step = below * scheme.top, scheme.num_bins - both  # the grid, in (finest / (bins·top)) parts
    linear = first * total + step * sums.products.astype(np.int64)
    square = 2 * first * step * codes + dim * first * first + step * step * squares
    losses: Counts = finest * square - 2 * scheme.num_bins * scheme.top * linear
    return losses


@dataclass(slots=True)
class _Fit:
    """The best codes met so far: their sum, their covariance with the row, their variance (both times dim²)."""

    codes: Each
    shared: Each
    own: Each


def fit(units: Rows, scheme: Scheme, found: Bounds) -> Grids:
    """The best of several grids, each with the scale and zero that least squares give for its codes; then refits."""
    dim, top = np.float32(units.shape[1]), np.float32(scheme.top)
    share = np.float32(1) / dim
    total, ones = _total(units), np.ones(len(units), dtype=np.float32)
    best = _Fit(codes=0 * ones, shared=0 * ones, own=ones)
    for inverse, offset in starts(scheme.bits, units.shape[1]):
        _keep_better(best, _sums(units, inverse * ones, offset * ones, top), total, dim)
    for _ in range(REFITS):
        slope = _cut(best.own / best.shared)
        _keep_better(best, _sums(units, slope, (best.codes - total * slope) * share, top), total, dim)
    step = best.shared / best.own
    first = (total - step * best.codes) * share
    unit = found.spread / np.float32(resolution(units.shape[1]))
    return Grids(scale=step * unit, zero=found.low + first * unit)


def _keep_better(best: _Fit, sums: Sums, total: Each, dim: np.float32) -> None:
    """Least squares leave the row's variance less shared²/own: the larger that is, the better."""
    shared = dim * sums.products - total * sums.codes
    own = dim * sums.squares - sums.codes * sums.codes
    better = (shared > 0) & (shared * shared * best.own > best.shared * best.shared * own)
    best.codes = np.where(better, sums.codes, best.codes)
    best.shared, best.own = np.where(better, shared, best.shared), np.where(better, own, best.own)


def _cut(values: Each) -> Each:
    return (values.view(np.uint32) & np.uint32(KEPT)).view(np.float32)
