"""What to read of chunks: the first n records of each, one by one or, for a whole table, in columns.

Many checkpoints of many small tables have very many chunks, so plans are made and carried out in columns; a single read
is looked at only if something is wrong with it, or if it has to take the plain path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.codec import Baseline, Difference
from holdfast.codec.chunk import Codecs, codecs_of, stored_columns
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.layout import IDS, Column
from holdfast.format.manifest import BundleRef, RowsChunk
from holdfast.format.outline import Outline, Share

Numbers = NDArray[np.int64]


class Read(NamedTuple):
    """The first ``rows`` records of a chunk, number ``at`` of an outline.

    Of the ``later`` checkpoints above the one that wrote it, the first ``settled`` replace none of these records: what
    they replaced is not among them.
    """

    outline: Outline
    at: int
    rows: int
    later: int = 0
    settled: int = 0

    @property
    def contested(self) -> bool:
        """Whether a later checkpoint may replace some of the records."""
        return self.settled < self.later

    @property
    def chunk(self) -> RowsChunk:
        """The chunk; its place's ``bundle`` says nothing outside of the outline."""
        return self.outline.chunk(self.at)

    @property
    def part(self) -> Share:
        """The share of the table that the chunk belongs to."""
        return self.outline.shares[int(self.outline.chunks["share"][self.at])]

    @property
    def checkpoint(self) -> str:
        """The id of the checkpoint that wrote it."""
        return self.outline.parts[self.part.part].checkpoint

    @property
    def bundle(self) -> BundleRef:
        """The bundle that holds the chunk."""
        return self.outline.bundles[self.chunk.place.bundle]

    @property
    def key(self) -> tuple[str, int]:
        """A key unique to the chunk within the run."""
        return self.bundle.name, self.chunk.place.offset

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of the chunk's columns."""
        chunk = self.chunk
        return stored_columns(self.part.spec.columns, chunk.rows, chunk.ids, chunk.codec, chunk.escapes)

    @property
    def codecs(self) -> Codecs | None:
        """The codecs of its columns; None: stored exactly."""
        return codecs_of(self.outline.forms[int(self.outline.chunks["form"][self.at])].codec)

    @property
    def baseline(self) -> Baseline | None:
        """What its weights are differences from, if they are any."""
        for codec in (self.codecs or {}).values():
            if isinstance(codec, Difference):
                return codec.baseline
        return None

    def ranges(self, columns: Sequence[Column]) -> list[tuple[int, int]]:
        """The chunk's bytes that hold these records' share of ``columns``; near ones in one range."""
        ranges: list[tuple[int, int]] = []
        for column in columns:
            start, stop = column.offset, column.offset + prefix_bytes(column, self.rows)
            if stop == start:
                continue
            if ranges and start - ranges[-1][1] <= BLOCK_BYTES:
                start = ranges.pop()[0]
            ranges.append((start, stop))
        return ranges

    @property
    def size_bytes(self) -> int:
        """Bytes of its ranges; reading takes whole blocks, so a little more."""
        return sum(stop - start for start, stop in self.ranges(self.columns))


def prefix_bytes(column: Column, rows: int) -> int:
    """Bytes of a column that the first ``rows`` rows need.

    All escapes, whose rows are not known yet, and all ids, which can only be checked together.
    """
    if not column.per_row or column.name == IDS:
        return column.length
    return column.length // column.shape[0] * rows if column.shape[0] else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reads:
    """Reads of one table in columns, generation by generation; see Read for what they are."""

    outlines: tuple[Outline, ...]
    outline: Numbers  # index of each one's
    at: Numbers
    rows: Numbers
    later: Numbers
    settled: Numbers
    generation: Numbers  # of the plan; does not fall from one to the next

    @classmethod
    def of(cls, generations: Sequence[Sequence[Read]]) -> Reads:
        """The reads of some generations."""
        reads = [(number, read) for number, each in enumerate(generations) for read in each]
        outlines = tuple({id(read.outline): read.outline for _, read in reads}.values())
        index = {id(outline): number for number, outline in enumerate(outlines)}
        lines = [(index[id(r.outline)], r.at, r.rows, r.later, r.settled, number) for number, r in reads]
        outline, at, rows, later, settled, generation = np.array(lines, dtype=np.int64).reshape(-1, 6).T
        return cls(
            outlines=outlines, outline=outline, at=at, rows=rows, later=later, settled=settled, generation=generation
        )

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, number: int) -> Read:
        columns = (self.at, self.rows, self.later, self.settled)
        return Read(self.outlines[self.outline[number]], *(int(column[number]) for column in columns))

    @property
    def contested(self) -> NDArray[np.bool_]:
        """Of each, whether a later checkpoint may replace some of the records."""
        found: NDArray[np.bool_] = self.settled < self.later
        return found

    def chosen(self, which: NDArray[np.bool_] | slice) -> Reads:
        """A subset of the reads."""
        return Reads(
            outlines=self.outlines,
            outline=self.outline[which],
            at=self.at[which],
            rows=self.rows[which],
            later=self.later[which],
            settled=self.settled[which],
            generation=self.generation[which],
        )

    def first_generation(self) -> Reads:
        """The reads of generation 0."""
        return self.chosen(slice(0, self._above))

    def above(self) -> Reads:
        """Those of all other generations."""
        return self.chosen(slice(self._above, None)) if self.has_first else self

    @property
    def has_first(self) -> bool:
        """Whether there are any of generation 0."""
        return bool(len(self)) and not self.generation[0]

    @property
    def _above(self) -> int:
        return int(np.searchsorted(self.generation, 1))

    def of_chunks(self, name: str) -> Numbers:
        """A column of the outlines, for each one's chunk."""
        found = np.zeros(len(self), dtype=np.int64)
        for number, outline in enumerate(self.outlines):
            here = self.outline == number
            found[here] = outline.chunks[name][self.at[here]]
        return found

    def generations(self, depth: int) -> tuple[tuple[Read, ...], ...]:
        """The reads one by one, grouped by generation."""
        columns = (self.outline, self.at, self.rows, self.later, self.settled)
        lines = zip(*(column.tolist() for column in columns), strict=True)
        reads = [Read(self.outlines[outline], *numbers) for outline, *numbers in lines]
        stops = np.searchsorted(self.generation, np.arange(depth + 1)).tolist()
        return tuple(tuple(reads[start:stop]) for start, stop in pairwise(stops))
