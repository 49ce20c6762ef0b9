"""Reads of one table that belong together, and where their records go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_reads import Numbers, Reads
from holdfast.checkpoint.restore.columns import ColumnTarget, Ids
from holdfast.types import TableSpec


class WrittenOnce:
    """The rows of a table's range that were written, to know that none was twice: a byte for each."""

    def __init__(self, rows: range) -> None:
        self.marks = np.zeros(len(rows), dtype=np.bool_)
        self._rows = rows
        self._counts: list[int] = []  # which several threads make longer

    def add(self, ids: Ids) -> None:
        """Mark these rows as written, as far as they are in the range."""
        places = ids - self._rows.start
        inside = places[(places >= 0) & (places < len(self._rows))]
        self.marks[inside] = True
        self.count(len(inside))

    def count(self, rows: int) -> None:
        """So many rows are written that others have marked."""
        self._counts.append(rows)

    @property
    def holds(self) -> bool:
        """Whether no row was written twice."""
        return int(np.count_nonzero(self.marks)) == sum(self._counts)


class Batch(NamedTuple):
    """Reads of one table and where their records go; of contested ones, those that no later generation replaces.

    ``groups`` are processed in ascending order.
    """

    spec: TableSpec
    reads: Reads
    groups: Numbers  # of each read
    writers: Mapping[str, ColumnTarget]
    wanted: range  # the table's rows that are; no other is written
    newest: NDArray[np.unsignedinteger] | None = None
    ids_out: Ids | None = None  # where the row ids of all reads shall go, too, one read's behind another's
    once: WrittenOnce | None = None  # told of each row that is written
    ids_alone: bool = False  # nothing is written, and all that is read is kept for later

    @property
    def starts(self) -> Numbers:
        """Where in ``ids_out`` each read's ids begin; one number more says where the last one's end."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.reads.rows)])
