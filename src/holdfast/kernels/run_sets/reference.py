"""Sets of numbers as runs, in NumPy: what the faster kernels must equal."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bounds: TypeAlias = NDArray[np.int64]

_OUTSIDE = np.zeros(1, np.bool_)


def union(first: Bounds, second: Bounds) -> Bounds:
    """The numbers that are in one of them."""
    more, fewer = (first, second) if len(first) >= len(second) else (second, first)
    return _changed(more, fewer, 1)


def less(first: Bounds, second: Bounds) -> Bounds:
    """The numbers of the first that are not in the second."""
    return _changed(first, second, -1)


def intersection(first: Bounds, second: Bounds) -> Bounds:
    """The numbers that are in both."""
    fewer, more = sorted((first, second), key=len)
    begin = np.searchsorted(more[1::2], fewer[::2], side="right")
    counts = np.searchsorted(more[::2], fewer[1::2], side="left") - begin  # of runs that overlap
    mine = np.repeat(np.arange(len(counts)), counts)
    theirs = np.arange(len(mine)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
    starts = np.maximum(fewer[::2][mine], more[::2][theirs])
    ends = np.minimum(fewer[1::2][mine], more[1::2][theirs])
    return np.stack([starts, ends], axis=1).ravel()


def _changed(bounds: Bounds, other: Bounds, sign: int) -> Bounds:
    """With another's numbers, or without: runs that do not meet it stay as they are."""
    first = int(np.searchsorted(bounds, other[0])) & ~1
    last = int(np.searchsorted(bounds, other[-1], side="right")) + 1 & ~1
    mine = bounds[first:last]
    steps = np.concatenate([_steps(mine), sign * _steps(other)])
    found = _covered(np.concatenate([mine, other]), steps)
    return np.concatenate([bounds[:first], found, bounds[last:]])


def _steps(bounds: Bounds) -> Bounds:
    """By how much each bound changes how many runs a number is in."""
    return np.resize(np.array([1, -1]), len(bounds))


def _covered(bounds: Bounds, steps: Bounds) -> Bounds:
    """The bounds of what is in one run at least; runs that count negative take away. There is a bound."""
    order = np.argsort(bounds, kind="stable")  # of sorted parts: it merges them
    points, level = bounds[order], np.cumsum(steps[order])
    is_last = np.append(points[1:] != points[:-1], True)  # of those at one point: they count together
    points, inside = points[is_last], level[is_last] > 0
    found: Bounds = points[inside != np.concatenate([_OUTSIDE, inside[:-1]])]
    return found
