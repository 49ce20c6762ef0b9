"""The few special functions that the failure models need, on NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

_EPSILON: Final = 1e-15
_TINY: Final = 1e-300
_MAX_TERMS: Final = 10_000

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def log_upper_gamma(shape: float, x: ArrayLike) -> FloatArray:
    """log Q(shape, x): the logarithm of the regularised upper incomplete gamma function.

    Below ``shape + 1`` the lower function's series converges fast, above it the upper one's continued fraction; only
    the second keeps its digits where the result is small.
    """
    values = np.atleast_1d(np.asarray(x, dtype=np.float64))
    result = np.zeros_like(values)
    low, high = (values > 0) & (values < shape + 1), values >= shape + 1
    if low.any():
        result[low] = np.log1p(-np.minimum(_lower_series(shape, values[low]), 1 - 1e-16))
    if high.any():
        result[high] = _log_front(shape, values[high]) + np.log(_continued_fraction(shape, values[high]))
    return result.reshape(np.shape(x))


def normal_survival(z: ArrayLike) -> FloatArray:
    """The share of a standard normal distribution above ``z``."""
    return np.asarray(0.5 * _erfc(np.asarray(z, dtype=np.float64) / math.sqrt(2)))


def minimise(function: Callable[[FloatArray], float], start: FloatArray, *, tolerance: float = 1e-10) -> FloatArray:
    """Where a smooth function of few variables is smallest: Nelder-Mead, begun again until that gains nothing."""
    best = start
    for _ in range(5):
        found = _nelder_mead(function, best, tolerance)
        gained = function(best) - function(found)
        best = found
        if gained <= tolerance * (1 + abs(function(best))):
            break
    return best


def bisect(is_below: Callable[[FloatArray], NDArray[np.bool_]], low: FloatArray, high: FloatArray) -> FloatArray:
    """The points between ``low`` and ``high`` up to which ``is_below`` holds, each on its own."""
    for _ in range(200):
        middle = (low + high) / 2
        below = is_below(middle)
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def _log_front(shape: float, x: FloatArray) -> FloatArray:
    return np.asarray(shape * np.log(x) - x - math.lgamma(shape))


def _lower_series(shape: float, x: FloatArray) -> FloatArray:
    """P(shape, x) = x^a e^-x / Γ(a) · Σ x^n / (a (a+1) ... (a+n))."""
    term = np.full_like(x, 1 / shape)
    total = term.copy()
    for n in range(1, _MAX_TERMS):
        term = term * x / (shape + n)
        total += term
        if np.all(term <= _EPSILON * total):
            break
    return np.asarray(np.exp(_log_front(shape, x)) * total)


def _continued_fraction(shape: float, x: FloatArray) -> FloatArray:
    """Lentz's evaluation of the fraction that Q(shape, x) is ``exp(_log_front)`` times of."""
    b = x + 1 - shape
    c = np.full_like(x, 1 / _TINY)
    d = 1 / b
    result = d.copy()
    for n in range(1, _MAX_TERMS):
        a = -n * (n - shape)
        b = b + 2
        d = 1 / _nonzero(a * d + b)
        c = _nonzero(b + a / c)
        result *= (step := c * d)
        if np.all(np.abs(step - 1) <= _EPSILON):
            break
    return result


def _nonzero(values: FloatArray) -> FloatArray:
    return np.where(np.abs(values) < _TINY, _TINY, values)


def _nelder_mead(function: Callable[[FloatArray], float], start: FloatArray, tolerance: float) -> FloatArray:
    points = [start, *(start + 0.25 * unit for unit in np.eye(len(start)))]
    corners = sorted(((function(point), point) for point in points), key=_value)
    for _ in range(400 * len(start)):
        if corners[-1][0] - corners[0][0] <= tolerance * (1 + abs(corners[0][0])):
            break
        corners = sorted(_improved(function, corners), key=_value)
    return corners[0][1]


def _improved(
    function: Callable[[FloatArray], float], corners: list[tuple[float, FloatArray]]
) -> list[tuple[float, FloatArray]]:
    """The corners with the worst one moved through, or towards, the middle of the others; failing that, all shrunk."""
    worst_value, worst = corners[-1]
    middle = np.mean([point for _, point in corners[:-1]], axis=0)

    def moved(factor: float) -> tuple[float, FloatArray]:
        point = middle + factor * (worst - middle)
        return function(point), point

    reflected = moved(-1.0)
    if reflected[0] < corners[0][0]:
        return [*corners[:-1], min(moved(-2.0), reflected, key=_value)]
    if reflected[0] < corners[-2][0]:
        return [*corners[:-1], reflected]
    contracted = moved(-0.5 if reflected[0] < worst_value else 0.5)
    if contracted[0] < min(reflected[0], worst_value):
        return [*corners[:-1], contracted]
    best = corners[0][1]
    shrunk = [best + 0.5 * (point - best) for _, point in corners[1:]]
    return [corners[0], *((function(point), point) for point in shrunk)]


def _value(corner: tuple[float, FloatArray]) -> float:
    return corner[0]
