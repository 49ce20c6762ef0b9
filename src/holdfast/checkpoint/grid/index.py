"""Knows which chunk holds the newest record of every row of a table shard, and so what a save replaces.

An exact index where IncrCP keeps a Bloom filter per chunk: it takes one byte per row up to 255 chunks since the
baseline, two up to 65535, and answers for all older chunks in one lookup, without false positives. Each record that was
replaced but not yet rearranged costs eight more bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
ChunkKey = tuple[str, int]  # a bundle's name and the chunk's offset in it


@dataclass(slots=True, kw_only=True, eq=False)
class Holding:
    """A chunk: the records that were alive when it was arranged, and those of them replaced since."""

    table: str
    cohort: int  # the number of the checkpoint that wrote it, counted from the baseline
    key: ChunkKey
    alive: int
    record_bytes: int
    first: int
    last: int
    through: int = 0  # replacements by so many of the checkpoints after its own are arranged already
    replaced: list[tuple[int, Ids]] = field(default_factory=list)  # by which checkpoint, which rows

    @property
    def dead(self) -> int:
        """Records replaced since."""
        return sum(len(ids) for _, ids in self.replaced)

    @property
    def alive_bytes(self) -> int:
        """Bytes of the records that were alive when it was arranged."""
        return self.alive * self.record_bytes

    @property
    def dead_bytes(self) -> int:
        """Bytes of those replaced since."""
        return self.dead * self.record_bytes

    def lost_to(self, checkpoint: int) -> Ids:
        """Rows that one checkpoint replaced."""
        found = [ids for by, ids in self.replaced if by == checkpoint]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


class TableIndex:
    """The chunks of rows ``start .. stop`` of one table since it was last saved whole."""

    def __init__(self, start: int, stop: int) -> None:
        self._start = start
        self._rows = stop - start
        self.restart()

    def restart(self) -> None:
        """The table was saved whole: nothing above that yet."""
        self._homes: NDArray[np.unsignedinteger] = np.zeros(self._rows, dtype=np.uint8)
        self.holdings: list[Holding] = []

    @property
    def nbytes(self) -> int:
        """Memory of the index itself."""
        return self._homes.nbytes + sum(ids.nbytes for held in self.holdings for _, ids in held.replaced)

    def add(self, holding: Holding, ids: Ids) -> None:
        """A newer checkpoint's chunk with its row ids; the chunks that held these rows note what they lost."""
        rows = ids - self._start
        for number, lost in _groups(self._homes[rows], ids):
            older = self.holdings[number - 1]
            if holding.cohort - older.cohort > older.through:
                older.replaced.append((holding.cohort, lost))
        self.holdings.append(holding)
        if len(self.holdings) > np.iinfo(self._homes.dtype).max:
            self._homes = self._homes.astype(np.min_scalar_type(len(self.holdings)))
        self._homes[rows] = len(self.holdings)


def _groups(numbers: NDArray[np.unsignedinteger], ids: Ids) -> Iterator[tuple[int, Ids]]:
    """The ids by number, those with number 0 left out."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    for number, part in zip(found.tolist(), np.split(ids[order], starts[1:]), strict=True):
        if number:
            yield number, part
