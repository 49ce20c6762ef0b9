"""Sets of numbers as runs, in Numba. Importing this module compiles it.

With the GIL: sets are worked on while other threads of a server move rows, and these would have it for longer than an
operation on sets takes.
"""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.compiled import compiled
from holdfast.kernels.run_sets.reference import Bounds

_INT = types.int64
_OUT, _BOUNDS = types.Array(types.int64, 1, "C"), types.Array(types.int64, 1, "C", readonly=True)


@compiled([_INT(_BOUNDS, _INT)], nogil=False)
def _below(bounds: Bounds, number: int) -> int:
    """How many bounds are less than a number."""
    low, high = 0, bounds.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if bounds[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low


@compiled([_INT(_BOUNDS, _BOUNDS, _INT, _OUT)], nogil=False)
def _changed(bounds: Bounds, other: Bounds, sign: int, out: Bounds) -> int:
    """With another's numbers, or without. What is before the first one that can matter, and behind the last, stays."""
    a, end_a = _below(bounds, other[0]) & ~1, (_below(bounds, other[-1] + 1) + 1) & ~1
    b, end_b = 0, other.shape[0]
    if sign < 0 and a < end_a:  # what is taken out of nothing changes nothing
        b, end_b = _below(other, bounds[a]) & ~1, (_below(other, bounds[end_a - 1] + 1) + 1) & ~1
    for i in range(a):
        out[i] = bounds[i]
    count, inside = a, False
    while a < end_a or (sign > 0 and b < end_b):
        is_own = b >= end_b or (a < end_a and bounds[a] <= other[b])
        point = bounds[a] if is_own else other[b]
        if a < end_a and bounds[a] == point:
            a += 1
        if b < end_b and other[b] == point:
            b += 1
        now = (a & 1 == 1 or b & 1 == 1) if sign > 0 else (a & 1 == 1 and b & 1 == 0)
        if now != inside:
            out[count] = point
            count += 1
            inside = now
    for i in range(end_a, bounds.shape[0]):
        out[count] = bounds[i]
        count += 1
    return count


@compiled([_INT(_BOUNDS, _BOUNDS, _OUT)], nogil=False)
def _common(fewer: Bounds, more: Bounds, out: Bounds) -> int:
    """Run by run of the smaller set: those that it meets of the other."""
    count, at = 0, _below(more, fewer[0] + 1) & ~1
    for i in range(0, fewer.shape[0], 2):
        start, end = fewer[i], fewer[i + 1]
        if at < more.shape[0] and more[at + 1] <= start:
            at += _below(more[at:], start + 1) & ~1
        while at < more.shape[0] and more[at] < end:
            low, high = max(start, more[at]), min(end, more[at + 1])
            if low < high:
                out[count], out[count + 1] = low, high
                count += 2
            if more[at + 1] > end:
                break
            at += 2
    return count


def union(first: Bounds, second: Bounds) -> Bounds:
    """The numbers that are in one of them."""
    more, fewer = (first, second) if len(first) >= len(second) else (second, first)
    out = np.empty(len(first) + len(second), np.int64)
    return _kept(out, _changed(more, fewer, 1, out))


def less(first: Bounds, second: Bounds) -> Bounds:
    """The numbers of the first that are not in the second."""
    out = np.empty(len(first) + len(second), np.int64)
    return _kept(out, _changed(first, second, -1, out))


def intersection(first: Bounds, second: Bounds) -> Bounds:
    """The numbers that are in both."""
    fewer, more = (first, second) if len(first) <= len(second) else (second, first)
    out = np.empty(len(first) + len(second), np.int64)
    return _kept(out, _common(fewer, more, out))


def _kept(out: Bounds, count: int) -> Bounds:
    """What was written; a small part of a large array does not keep the rest of it."""
    return out[:count] if 2 * count >= len(out) else out[:count].copy()
