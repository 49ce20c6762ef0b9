"""What to read of each table to restore a checkpoint: which records of which chunks, before a byte of them is read.

A table's rows come as generations, oldest first: the last one that holds every row, then the deltas on top. In a grid
a delta's chunks are arranged by the checkpoint that replaced their records, so that the ones another checkpoint needs
are the first so many of each chunk (docs/spec/grid.md). A chunk is *contested* where it may hold records that a later
generation of the same plan replaces, because nobody has arranged it since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.read import Parts
from holdfast.errors import DamagedData
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.layout import Column, chunk_columns
from holdfast.format.manifest import BundleRef, Manifest, RowsChunk, TablePart
from holdfast.types import CheckpointInfo, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The first ``rows`` records of a chunk.

    Of the ``later`` checkpoints above the one that wrote it, the first ``settled`` replace none of these records: what
    they replaced is not among them.
    """

    manifest: Manifest
    part: TablePart
    chunk: RowsChunk
    rows: int
    later: int = 0
    settled: int = 0

    @property
    def contested(self) -> bool:
        """Whether a later checkpoint may replace some of the records."""
        return self.settled < self.later

    @property
    def bundle(self) -> BundleRef:
        """Where the chunk lies."""
        return self.manifest.bundles[self.chunk.place.bundle]

    @property
    def key(self) -> tuple[str, int]:
        """What no other chunk of the run has."""
        return self.bundle.name, self.chunk.place.offset

    @property
    def columns(self) -> tuple[Column, ...]:
        """All of the chunk's columns."""
        return chunk_columns(self.part.spec.columns, self.chunk.rows, self.chunk.ids)

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
    """Bytes of a column's first ``rows`` entries."""
    return column.length // column.shape[0] * rows if column.shape[0] else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table's generations, oldest first; the first holds every row."""

    spec: TableSpec
    generations: tuple[tuple[Read, ...], ...]
    baseline: bool  # whether the first generation is the baseline's own
    arranged: bool = False  # whether the deltas are, at least in part, free of replaced records

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
                checkpoint=read.manifest.checkpoint,
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


def plan_tables(history: Sequence[Parts]) -> dict[str, TablePlan]:
    """What to read of each table of the last checkpoint in ``history`` (baseline first)."""
    ids = [parts[0].checkpoint for parts in history]
    views = [[_View.of(manifest, ids[age + 1 :]) for manifest in parts] for age, parts in enumerate(history)]
    names = dict.fromkeys(name for view in views[-1] for name in view.tables)
    return {name: _plan_table(name, views) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A manifest as a later checkpoint of its timeline sees it."""

    manifest: Manifest
    tables: dict[str, TablePart]
    later: int  # how many checkpoints above its own there are, up to that one
    replacing: int  # by so many of these, from the first one on, it was arranged

    @classmethod
    def of(cls, manifest: Manifest, later: Sequence[str]) -> _View:
        return cls(
            manifest=manifest,
            tables={part.spec.name: part for part in manifest.tables},
            later=len(later),
            replacing=replacing_in(manifest, later),
        )

    def reads(self, part: TablePart) -> Iterator[Read]:
        for chunk in part.chunks:
            # The rows of a table saved whole have no segments: what replaces them is written over them.
            rows = chunk.rows if part.whole else chunk.visible(self.replacing)
            if rows or part.whole:
                settled = min(chunk.through, self.replacing)
                yield Read(manifest=self.manifest, part=part, chunk=chunk, rows=rows, later=self.later, settled=settled)


def replacing_in(manifest: Manifest, later: Sequence[str]) -> int:
    """How many of the checkpoints that a manifest was arranged by are on this timeline, too: its first so many."""
    common = 0
    for ours, theirs in zip(manifest.replacing, later, strict=False):
        if ours != theirs:
            break
        common += 1
    return common


def _plan_table(name: str, history: Sequence[Sequence[_View]]) -> TablePlan:
    generations: list[tuple[Read, ...]] = []
    spec: TableSpec | None = None
    for age in range(len(history) - 1, -1, -1):
        found = [(view, view.tables[name]) for view in history[age] if name in view.tables]
        spec = spec or found[0][1].spec
        if any(part.spec != spec for _, part in found):
            checkpoint = history[age][0].manifest.checkpoint
            raise DamagedData(checkpoint, f"table {name} changes its shape below a delta that stands on it")
        generations.append(tuple(read for view, part in found for read in view.reads(part)))
        if found and all(part.whole for _, part in found):
            above = [read.chunk for generation in generations[:-1] for read in generation]
            return TablePlan(
                spec=spec,
                generations=tuple(reversed(generations)),
                baseline=age == 0,
                arranged=any(chunk.segments or chunk.through for chunk in above),
            )
    raise DamagedData(history[0][0].manifest.checkpoint, f"no checkpoint below holds every row of table {name}")
