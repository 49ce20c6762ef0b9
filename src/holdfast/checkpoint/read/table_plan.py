"""A plan: what to read of each table to restore a checkpoint, made before any row is read.

A table's rows come as generations, oldest first: the last one that holds every row, then the deltas on top. In a grid a
delta's chunks are arranged by the checkpoint that replaced their records, so the records that another checkpoint needs
are the first ones of each chunk (docs/spec/grid.md). A chunk is *contested* if it may hold records that a later
generation of the same plan replaces, because it has not been arranged since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from holdfast.checkpoint.read.chunk_reads import Read, Reads
from holdfast.types import CheckpointInfo, TableSpec


@dataclass(frozen=True, kw_only=True, eq=False)
class TablePlan:
    """A table's generations, oldest first; the first holds every row."""

    spec: TableSpec
    reads: Reads
    depth: int  # how many generations there are, those included of which nothing is read
    baseline: bool  # whether the first generation is the baseline's own
    arranged: bool = False  # whether the deltas' records do not depend on the order in which they are applied
    key: tuple[Read, ...] = ()  # what rows stored as differences differ from: the rows of the first generation

    @classmethod
    def of(cls, spec: TableSpec, generations: Sequence[Sequence[Read]], *, baseline: bool) -> TablePlan:
        """A plan of these reads, which are to be replayed."""
        return cls(spec=spec, reads=Reads.of(generations), depth=len(generations), baseline=baseline)

    @cached_property
    def generations(self) -> tuple[tuple[Read, ...], ...]:
        """The reads one by one."""
        return self.reads.generations(self.depth)

    @property
    def has_first(self) -> bool:
        """Whether the rows of the first generation are read, too."""
        return self.reads.has_first

    @property
    def size_bytes(self) -> int:
        """Bytes that will be read."""
        return sum(read.size_bytes for generation in self.generations for read in generation)

    def within(self, rows: range) -> TablePlan:
        """The plan without chunks that hold none of these rows."""
        if rows == range(self.spec.rows):
            return self
        reads = self.reads
        return replace(
            self, reads=reads.chosen((reads.of_chunks("first") < rows.stop) & (reads.of_chunks("last") >= rows.start))
        )

    def without_baseline(self) -> TablePlan:
        """What is above the rows of the first generation."""
        return replace(self, reads=self.reads.above())

    def first_generation(self) -> TablePlan:
        """The rows of the first generation alone."""
        return replace(self, reads=self.reads.first_generation(), depth=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRead:
    """A byte range of an object that holds records of a table.

    Args:
        table: The table's name.
        checkpoint: The id of the checkpoint that wrote the records.
        object_name: The object to read.
        start: The first byte.
        stop: The byte after the last one.
    """

    table: str
    checkpoint: str
    object_name: str
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """The length of the range."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """What a restore of a checkpoint's tables will read.

    Args:
        checkpoint: The checkpoint to restore.
        reads: The byte ranges to read.
        rows: How many row records they hold, including those that others replace.
    """

    checkpoint: CheckpointInfo
    reads: tuple[PlannedRead, ...]
    rows: int

    @property
    def size_bytes(self) -> int:
        """Bytes of row records and ids; reads cover whole blocks and so take slightly more."""
        return sum(read.size_bytes for read in self.reads)

    @property
    def objects(self) -> int:
        """How many objects are read."""
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
        return cls(checkpoint=info, reads=tuple(reads), rows=sum(int(plan.reads.rows.sum()) for plan in plans.values()))
