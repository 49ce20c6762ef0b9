"""A plan: what to read of each table to restore a checkpoint, before a byte of its rows is read.

A table's rows come as generations, oldest first: the last one that holds every row, then the deltas on top. In a grid
a delta's chunks are arranged by the checkpoint that replaced their records, so that the ones another checkpoint needs
are the first so many of each chunk (docs/spec/grid.md). A chunk is *contested* where it may hold records that a later
generation of the same plan replaces, because nobody has arranged it since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.codec import Baseline, Difference
from holdfast.codec.chunk import Codecs, codecs_of, stored_columns
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.layout import IDS, Column
from holdfast.format.manifest import BundleRef, RowsChunk
from holdfast.format.outline import Outline, Share
from holdfast.types import CheckpointInfo, TableSpec


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
        """Who wrote it."""
        return self.outline.parts[self.part.part].checkpoint

    @property
    def bundle(self) -> BundleRef:
        """Where the chunk lies."""
        return self.outline.bundles[self.chunk.place.bundle]

    @property
    def key(self) -> tuple[str, int]:
        """What no other chunk of the run has."""
        return self.bundle.name, self.chunk.place.offset

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of the chunk's columns."""
        chunk = self.chunk
        return stored_columns(self.part.spec.columns, chunk.rows, chunk.ids, chunk.codec, chunk.escapes)

    @property
    def codecs(self) -> Codecs | None:
        """What its columns are stored with; None: as they are."""
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

    All of the escapes, whose rows are not known yet, and all ids: only all of them tell whether they are right.
    """
    if not column.per_row or column.name == IDS:
        return column.length
    return column.length // column.shape[0] * rows if column.shape[0] else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table's generations, oldest first; the first holds every row."""

    spec: TableSpec
    generations: tuple[tuple[Read, ...], ...]
    baseline: bool  # whether the first generation is the baseline's own
    arranged: bool = False  # whether the deltas' records do not depend on the order in which they are applied
    key: tuple[Read, ...] = ()  # what rows stored as differences differ from: the rows of the first generation

    @property
    def size_bytes(self) -> int:
        """Bytes that will be read."""
        return sum(read.size_bytes for generation in self.generations for read in generation)

    def without_baseline(self) -> TablePlan:
        """What stands above the rows of the first generation."""
        return replace(self, generations=((), *self.generations[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRead:
    """A byte range of an object with records of a table in it."""

    table: str
    checkpoint: str  # that wrote the records
    object_name: str
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Its bytes."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What a restore of a checkpoint's tables will read."""

    checkpoint: CheckpointInfo
    reads: tuple[PlannedRead, ...]
    rows: int  # records, those among them that another one replaces included

    @property
    def size_bytes(self) -> int:
        """Bytes of row records and ids; whole blocks are read, so a little more."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def objects(self) -> int:
        """How many objects they lie in."""
        return len({read.object_name for read in self.reads})

    @classmethod
    def of(cls, info: CheckpointInfo, plans: Mapping[str, TablePlan]) -> RestorePlan:
        """The plan of a checkpoint's tables as a list of ranges."""
        reads = (
            PlannedRead(
                table=name,
                checkpoint=read.checkpoint,
                object_name=read.bundle.name,
                start=read.chunk.place.offset + start,
                stop=read.chunk.place.offset + stop,
            )
            for name, plan in plans.items()
            for generation in plan.generations
            for read in generation
            for start, stop in read.ranges(read.columns)
        )
        rows = (read.rows for plan in plans.values() for generation in plan.generations for read in generation)
        return cls(checkpoint=info, reads=tuple(reads), rows=sum(rows))
