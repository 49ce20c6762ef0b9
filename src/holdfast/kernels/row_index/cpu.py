"""An index of rows in Numba: a table of hashes with open addresses, at most half full. Importing this compiles it."""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.compiled import compiled
from holdfast.kernels.row_index.reference import ALL, Entered, Ids, Words

_FEWEST = 1 << 12  # places of a table
_ROOMY = 16  # times as many places as rows: the table is too large
_FREE = np.int64(-1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing: 2**64 over the golden ratio

_IDS, _OUT = types.Array(types.int64, 1, "C", readonly=True), types.Array(types.int64, 1, "C")
_TABLE, _WORDS = types.Array(types.int64, 2, "C"), types.Array(types.uint32, 1, "C")


@compiled([types.void(_TABLE, types.int64, _IDS, _IDS, _OUT, _OUT, _WORDS)])
def _enter(table: Ids, bits: int, rows: Ids, slices: Ids, counts: Ids, offsets: Ids, known: Words) -> None:
    last, shift = (1 << bits) - 1, np.uint64(64 - bits)
    for number in range(rows.shape[0]):
        row = rows[number]
        at = np.int64((np.uint64(row) * _SPREAD) >> shift)
        while table[at, 0] != _FREE and table[at, 0] != row:
            at = (at + 1) & last
        if table[at, 0] == row:
            known[number] = ALL
        else:
            table[at, 0], table[at, 1] = row, counts[slices[number]]
            counts[slices[number]] += 1
            known[number] = 0
        offsets[number] = table[at, 1]


@compiled([types.void(_TABLE, _TABLE, types.int64)])
def _move(old: Ids, table: Ids, bits: int) -> None:
    """What stands in one table into a larger one."""
    last, shift = (1 << bits) - 1, np.uint64(64 - bits)
    for number in range(old.shape[0]):
        row = old[number, 0]
        if row != _FREE:
            at = np.int64((np.uint64(row) * _SPREAD) >> shift)
            while table[at, 0] != _FREE:
                at = (at + 1) & last
            table[at, 0], table[at, 1] = row, old[number, 1]


class RowIndex:
    """See the package.

    Args:
        slices: How many there are.
    """

    def __init__(self, slices: int) -> None:
        self.counts: Ids = np.zeros(slices, np.int64)
        self._table: Ids = np.full((_FEWEST, 2), _FREE)

    def enter(self, rows: Ids, slices: Ids) -> Entered:
        """Rows, each once and ascending, and the slice of each."""
        self._make_room(int(self.counts.sum()) + len(rows))
        found = Entered(np.empty(len(rows), np.int64), np.empty(len(rows), np.uint32))
        _enter(self._table, self._bits, rows, slices, self.counts, *found)
        return found

    def clear(self) -> None:
        """No row has come. After one large difference, small ones do not go on clearing a large table."""
        rows = int(self.counts.sum())
        self.counts[:] = 0
        if _ROOMY * rows < len(self._table) > _FEWEST:
            self._table = np.full((max(_FEWEST, _places(2 * rows)), 2), _FREE)
        else:
            self._table.fill(_FREE)

    @property
    def _bits(self) -> int:
        return len(self._table).bit_length() - 1

    def _make_room(self, rows: int) -> None:
        if 2 * rows > len(self._table):
            old, self._table = self._table, np.full((_places(2 * rows), 2), _FREE)
            _move(old, self._table, self._bits)


def _places(least: int) -> int:
    """The next power of two."""
    return 1 << max(least - 1, 0).bit_length()
