"""Sets of numbers as runs: of two such sets the union, the intersection, the difference.

A set is int64, its *bounds*: where each run begins and where it ends, strictly ascending. Numba and NumPy give the same
bounds. None of them looks at runs that lie outside the other set's first and last number, except to copy them: a few
numbers leave a set of many runs in microseconds. No torch: servers run without it.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol, cast

from holdfast.kernels.run_sets.reference import Bounds

__all__ = ["Bounds", "intersection", "less", "union", "warm_up"]


def union(first: Bounds, second: Bounds) -> Bounds:
    """The numbers that are in one of them."""
    if not len(first) or not len(second):
        return first if len(first) else second
    return _kernels().union(first, second)


def intersection(first: Bounds, second: Bounds) -> Bounds:
    """The numbers that are in both."""
    if not len(first) or not len(second):
        return first if not len(first) else second
    return _kernels().intersection(first, second)


def less(first: Bounds, second: Bounds) -> Bounds:
    """The numbers of the first that are not in the second."""
    if not len(first) or not len(second):
        return first
    return _kernels().less(first, second)


def warm_up() -> None:
    """Compile or load now what sets need, so that no message waits for it."""
    _kernels()


class _Kernels(Protocol):
    """Of two sets, none of them empty."""

    def union(self, first: Bounds, second: Bounds, /) -> Bounds: ...
    def intersection(self, first: Bounds, second: Bounds, /) -> Bounds: ...
    def less(self, first: Bounds, second: Bounds, /) -> Bounds: ...


@cache
def _kernels() -> _Kernels:
    try:
        from holdfast.kernels.run_sets import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.run_sets import reference

        return cast(_Kernels, reference)
    return cast(_Kernels, cpu)
