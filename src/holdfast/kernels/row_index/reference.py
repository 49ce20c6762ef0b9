"""An index of rows in NumPy: what the faster one must equal, and what runs where Numba is missing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Words = NDArray[np.uint32]

ALL = np.uint32(0xFFFFFFFF)


class Entered(NamedTuple):
    """Where rows stand."""

    offsets: Ids  # among those of the same slice
    known: Words  # all bits set where a row had come before, else none


class RowIndex:
    """See the package.

    Args:
        slices: How many there are.
    """

    def __init__(self, slices: int) -> None:
        self.counts: Ids = np.zeros(slices, np.int64)
        self._rows: Ids = np.empty(0, np.int64)  # ascending
        self._offsets: Ids = np.empty(0, np.int64)

    def enter(self, rows: Ids, slices: Ids) -> Entered:
        """Rows, each once and ascending, and the slice of each."""
        at = np.searchsorted(self._rows, rows)
        inside = np.minimum(at, len(self._rows) - 1)
        known = self._rows[inside] == rows if len(self._rows) else np.zeros(len(rows), np.bool_)
        offsets = self._offsets[inside] if len(self._rows) else np.zeros(len(rows), np.int64)
        for number in range(len(self.counts)):
            new = np.flatnonzero(~known & (slices == number))
            offsets[new] = self.counts[number] + np.arange(len(new))
            self.counts[number] += len(new)
        self._rows = np.insert(self._rows, at[~known], rows[~known])
        self._offsets = np.insert(self._offsets, at[~known], offsets[~known])
        return Entered(offsets, np.where(known, ALL, np.uint32(0)))

    def clear(self) -> None:
        """No row has come."""
        self.counts[:] = 0
        self._rows, self._offsets = self._rows[:0], self._offsets[:0]
