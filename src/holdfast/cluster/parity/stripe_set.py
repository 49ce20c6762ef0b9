"""Sets of stripes, as runs of their numbers: what a server owns, hosts or lacks is a few runs, whatever its size."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels import run_sets
from holdfast.kernels.runs import Runs

Ids: TypeAlias = NDArray[np.int64]
Arrays: TypeAlias = tuple[NDArray[Any], ...]

_NONE: Ids = np.empty(0, np.int64)


class StripeSet:
    """Numbers, none of them negative. It never changes.

    Args:
        bounds: Where runs begin and end, strictly ascending: the first is in the set, the second is not, and so on.
    """

    __slots__ = ("_bounds", "_size")

    def __init__(self, bounds: Ids) -> None:
        self._bounds = bounds
        self._size = -1 if len(bounds) else 0  # -1: nobody has asked yet

    @classmethod
    def of(cls, numbers: Ids) -> Self:
        """These numbers, in any order."""
        known = np.sort(numbers)
        known = known[np.append(known[1:] != known[:-1], True)] if len(known) else known
        breaks = np.flatnonzero(np.diff(known) != 1)
        starts = known[np.concatenate([[0], breaks + 1])] if len(known) else known
        ends = known[np.append(breaks, len(known) - 1)] + 1 if len(known) else known
        return cls(np.stack([starts, ends], axis=1).ravel())

    @classmethod
    def run(cls, start: int, end: int) -> Self:
        """All from ``start`` to before ``end``."""
        return cls(np.array([start, end] if start < end else [], np.int64))

    @classmethod
    def union(cls, parts: Iterable[Self]) -> Self:
        """All that are in one of them."""
        return cls(reduce(run_sets.union, [part._bounds for part in parts], _NONE))

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """As ``to_arrays`` made them; raises ValueError for anything else."""
        (bounds,) = arrays
        if bounds.ndim != 1 or bounds.dtype != np.int64 or len(bounds) % 2:
            raise ValueError("stripes are runs, each from a number to another")
        if len(bounds) and not (bounds[0] >= 0 and (bounds[1:] > bounds[:-1]).all()):
            raise ValueError("runs of stripes ascend, and do not touch each other")
        return cls(bounds)

    def to_arrays(self) -> Arrays:
        """For a message."""
        return (self._bounds,)

    @property
    def lowest(self) -> int:
        """Of a set that is not empty: its first number."""
        return int(self._bounds[0])

    @property
    def highest(self) -> int:
        """Of a set that is not empty: its last number."""
        return int(self._bounds[-1]) - 1

    def numbers(self) -> Ids:
        """All of them, ascending."""
        if len(self._bounds) == 2:
            return np.arange(*self._bounds.tolist())
        starts, sizes = self._bounds[::2], np.diff(self._bounds)[::2]
        before = np.cumsum(sizes) - sizes
        found: Ids = np.repeat(starts - before, sizes) + np.arange(len(self))
        return found

    def within(self, start: int, end: int) -> Self:
        """Those from ``start`` to before ``end``."""
        if len(self._bounds) and start <= self._bounds[0] and self._bounds[-1] <= end:
            return self
        first, last = np.searchsorted(self._bounds, [start, end], side="right").tolist()
        kept = self._bounds[first:last]
        if start < end and not (first % 2 or last % 2):
            return type(self)(kept)
        head, tail = [start] if first % 2 else [], [end] if last % 2 else []
        found = np.concatenate([head, kept, tail]).astype(np.int64) if start < end else kept[:0]
        return type(self)(found[:-2] if len(found) > 1 and found[-1] == found[-2] else found)

    def first(self, count: int) -> Self:
        """The lowest ones, so many or all."""
        reached = np.cumsum(np.diff(self._bounds)[::2])
        runs = int(np.searchsorted(reached, count))
        if count < 1 or runs == len(reached):
            return self if count > 0 else self.run(0, 0)
        over = int(reached[runs]) - count
        return type(self)(np.append(self._bounds[: 2 * runs + 1], self._bounds[2 * runs + 1] - over))

    def contains(self, numbers: Ids) -> NDArray[np.bool_]:
        """Which of these are in the set."""
        found: NDArray[np.bool_] = np.searchsorted(self._bounds, numbers, side="right") % 2 == 1
        return found

    def places(self, numbers: Ids) -> Ids:
        """Where these stand among the set's numbers, all of which are in it."""
        run = np.searchsorted(self._bounds[::2], numbers, side="right") - 1
        found: Ids = numbers - self._before()[run]
        return found

    def runs_of(self, part: Self) -> Runs:
        """Where the numbers of another set stand among this set's, all of which are in it."""
        starts, ends = part._bounds[::2], part._bounds[1::2]
        return Runs(self.places(starts), ends - starts)

    def _before(self) -> Ids:
        """By run, how many numbers below it are not in the set."""
        starts, sizes = self._bounds[::2], self._bounds[1::2] - self._bounds[::2]
        found: Ids = starts - (np.cumsum(sizes) - sizes)
        return found

    def __and__(self, other: Self) -> Self:
        if not self._size or not other._size:
            return other if self._size else self
        return type(self)(run_sets.intersection(self._bounds, other._bounds))

    def __or__(self, other: Self) -> Self:
        if not self._size or not other._size:
            return self if self._size else other
        return type(self)(run_sets.union(self._bounds, other._bounds))

    def __sub__(self, other: Self) -> Self:
        if not self._size or not other._size:
            return self
        if self == other:  # most answers are to the whole of a question
            return type(self)(_NONE)
        return type(self)(run_sets.less(self._bounds, other._bounds))

    def __bool__(self) -> bool:
        return self._size != 0

    def __len__(self) -> int:
        if self._size < 0:
            self._size = int((self._bounds[1::2] - self._bounds[::2]).sum())
        return self._size

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, StripeSet) or len(self._bounds) != len(other._bounds):
            return False
        return self._bounds.tobytes() == other._bounds.tobytes()

    def __hash__(self) -> int:
        return hash(self._bounds.tobytes())

    def __repr__(self) -> str:
        runs = [f"{start}-{end - 1}" for start, end in self._bounds.reshape(-1, 2)[:8].tolist()]
        return f"StripeSet({', '.join(runs)}{', ...' if len(self._bounds) > 16 else ''})"
