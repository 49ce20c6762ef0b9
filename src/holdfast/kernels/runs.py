"""Rows that lie side by side, as runs: moving them takes the time of their bytes, and not of their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigurationError

_NONE = np.empty(0, np.int64)


class Runs(NamedTuple):
    """Rows of an array, run after run: each begins at a row, and has so many."""

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def all(cls, rows: int) -> Runs:
        """Every row of an array that has so many."""
        return cls(np.array([0]), np.array([rows]))

    @property
    def size(self) -> int:
        """How many rows they have together."""
        return int(self.counts.sum())

    def rows(self) -> NDArray[np.int64]:
        """All of them, one by one."""
        before = np.cumsum(self.counts) - self.counts
        found: NDArray[np.int64] = np.repeat(self.starts - before, self.counts) + np.arange(self.size)
        return found

    def shares(self, count: int) -> Iterator[tuple[Runs, slice]]:
        """Their rows in so many parts of about one size, none of them empty: runs, and which of all rows they are.

        There are at least as many rows.
        """
        ends = np.cumsum(self.counts)
        cuts = [int(ends[-1]) * number // count for number in range(count + 1)]
        if len(ends) == 1:
            start = int(self.starts[0])
            for begin, end in pairwise(cuts):
                yield Runs(np.array([start + begin]), np.array([end - begin])), slice(begin, end)
            return
        for begin, end in pairwise(cuts):
            first, last = int(ends.searchsorted(begin, "right")), int(ends.searchsorted(end, "left")) + 1
            starts, counts = self.starts[first:last].copy(), self.counts[first:last].copy()
            skipped = begin - int(ends[first] - self.counts[first])
            starts[0] += skipped
            counts[0] -= skipped
            counts[-1] -= int(ends[last - 1]) - end
            yield Runs(starts, counts), slice(begin, end)


def joined(parts: Sequence[Runs]) -> Runs:
    """The runs of all parts, one part after another."""
    if len(parts) == 1:
        return parts[0]
    starts = np.concatenate([_NONE, *(each.starts for each in parts)])
    return Runs(starts, np.concatenate([_NONE, *(each.counts for each in parts)]))


def runs_inside(runs: Runs, size: int, holder: str) -> Runs:
    """Runs as kernels take them; one that the holder does not have raises ConfigurationError."""
    starts, counts = (np.ascontiguousarray(each, np.int64) for each in runs)
    if len(starts) != len(counts):
        raise ConfigurationError(f"{len(starts)} runs have {len(counts)} lengths")
    if len(starts) and not (starts.min() >= 0 and counts.min() >= 0 and (starts + counts).max() <= size):
        raise ConfigurationError(f"a run of rows is outside {holder} of {size} rows")
    return Runs(starts, counts)
