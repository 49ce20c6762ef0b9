"""What a server's rows have changed by since hosts were last told: each row once, however many pushes changed it."""

from __future__ import annotations

import numpy as np

from holdfast.cluster.parity.payload import Changed, Words
from holdfast.cluster.payload import Numbers
from holdfast.erasure.stripes import Stripes
from holdfast.kernels.optimize import Places
from holdfast.kernels.row_index import row_index

_SPARE = 4  # room for a part in so many more rows than there were at most lately


class GroupChanges:
    """Of one group: old XOR new of the records, by member number.

    Rows of one member number have one host for each parity: what a host is sent lies in one piece, and is sent from
    where updates have written it.

    Args:
        stripes: Of the group.
        words: How many a record has.
    """

    def __init__(self, stripes: Stripes, words: int) -> None:
        members = stripes.ring.data
        self._stripes = stripes
        self._words = words
        self._index = row_index(members)
        self._usual: Numbers = np.zeros(members, np.int64)  # rows, by member number, that there is room for at first
        self._room: Numbers = np.zeros(members, np.int64)
        self._starts: Numbers = np.zeros(members, np.int64)
        self._rows: Numbers = np.empty(0, np.int64)
        self._records: Words = np.empty((0, words), np.uint32)

    def places(self, rows: Numbers) -> Places:
        """Where an update adds what it changes of some rows, each of them once and ascending."""
        members = self._stripes.members(rows)
        self._make_room(self._index.counts + np.bincount(members, minlength=len(self._room)))
        entered = self._index.enter(rows, members)
        at = self._starts[members] + entered.offsets
        self._rows[at] = rows
        return Places(at, entered.known, self._records)

    def take(self) -> list[Changed]:
        """All of it, for each member number. It is not noted any more, and nothing else is written to these arrays."""
        counts = self._index.counts
        parts = [slice(start, start + rows) for start, rows in zip(self._starts.tolist(), counts.tolist(), strict=True)]
        found = [Changed(self._rows[part], self._records[part]) for part in parts]
        self._usual = np.maximum(counts + counts // _SPARE, self._usual - self._usual // _SPARE)
        self._index.clear()
        self._lay_out(np.zeros_like(counts))
        return found

    def _make_room(self, wanted: Numbers) -> None:
        if (wanted <= self._room).all():
            return
        rows, records, starts = self._rows, self._records, self._starts
        self._lay_out(np.maximum(wanted + wanted // _SPARE, np.maximum(self._usual, 2 * self._room)))
        for old, new, held in zip(starts.tolist(), self._starts.tolist(), self._index.counts.tolist(), strict=True):
            self._rows[new : new + held] = rows[old : old + held]
            self._records[new : new + held] = records[old : old + held]

    def _lay_out(self, room: Numbers) -> None:
        """New memory, with room for so many rows of each member number."""
        self._room, self._starts = room, np.cumsum(room) - room
        self._rows = np.empty(int(room.sum()), np.int64)
        self._records = np.empty((int(room.sum()), self._words), np.uint32)
