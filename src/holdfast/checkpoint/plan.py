"""What to read of each table to restore a checkpoint: which records of which chunks, before a byte of them is read.

A table's rows come as generations, oldest first: the last one that holds every row, then the deltas on top. In a grid
a delta's chunks are arranged by the checkpoint that replaced their records, so that the ones another checkpoint needs
are the first so many of each chunk (docs/spec/grid.md). A chunk is *contested* where it may hold records that a later
generation of the same plan replaces, because nobody has arranged it since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read import Parts
from holdfast.codec import Baseline, Difference
from holdfast.codec.chunk import Codecs, codecs_of, stored_columns
from holdfast.errors import DamagedData
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.layout import Column
from holdfast.format.manifest import EXACT, BundleRef, Manifest, RowsChunk
from holdfast.format.outline import Outline, Share, common
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
    """Bytes of a column that belong to the first ``rows`` rows; of escapes, whose rows are not known yet, all."""
    if not column.per_row:
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


Source = tuple[Outline, int]  # what one writer saved of a checkpoint: a part of an outline


def plan_tables(history: Sequence[Parts]) -> dict[str, TablePlan]:
    """What to read of each table of the last checkpoint in ``history`` (baseline first)."""
    outline = Outline.of(manifest for parts in history for manifest in parts)
    numbers = iter(range(len(outline.parts)))
    return plan_sources([[(outline, next(numbers)) for _ in parts] for parts in history])


def plan_sources(history: Sequence[Sequence[Source]]) -> dict[str, TablePlan]:
    """The same, of outlined manifests."""
    views = {outline: _View(outline, history) for outline in {outline for parts in history for outline, _ in parts}}
    names = dict.fromkeys(share.spec.name for outline, part in history[-1] for share in views[outline].shares[part])
    return {name: _plan_table(name, history, views) for name in names}


class _View:
    """An outline as the last checkpoint of a history sees it."""

    def __init__(self, outline: Outline, history: Sequence[Sequence[Source]]) -> None:
        self.outline = outline
        self.shares: list[list[Share]] = [[] for _ in outline.parts]
        self.named = {(share.part, share.spec.name): number for number, share in enumerate(outline.shares)}
        for share in outline.shares:
            self.shares[share.part].append(share)
        self._part_of = np.array([share.part for share in outline.shares], dtype=np.int64)
        replacing = np.zeros(len(outline.parts), dtype=np.int64)
        ids = tuple(_checkpoint(parts) for parts in history)
        for age, parts in enumerate(history):
            for source, part in parts:
                if source is outline:
                    replacing[part] = self._replacing(part, ids[age + 1 :])
        self._choose(replacing[self._part_of[outline.chunks["share"]]])

    def _replacing(self, part: int, later: tuple[str, ...]) -> int:
        """By how many of the checkpoints after its own, from the first one on, a part was arranged."""
        timeline, start, count = self.outline.parts[part].replacing
        return common(self.outline.timelines[timeline][start : start + count], later)

    def _choose(self, replacing: NDArray[np.int64]) -> None:
        """Which records of each chunk are needed, and by how many later checkpoints none of them is replaced."""
        share = self.outline.chunks["share"]
        whole = np.array([each.whole for each in self.outline.shares], dtype=bool)[share]
        # The rows of a table saved whole have no segments: what replaces them is written over them.
        self._rows = np.where(whole, self.outline.chunks["rows"], self.outline.visible(replacing))
        self._settled = np.minimum(self.outline.chunks["through"], replacing)
        self._needed = (self._rows > 0) | whole

    def reads(self, numbers: Mapping[int, int], ages: int, into: list[list[Read]]) -> None:
        """The chunks of some shares, as reads of the generation whose number is given for the share."""
        of_share = np.full(len(self.outline.shares), -1, dtype=np.int64)
        of_share[list(numbers)] = list(numbers.values())
        generation = of_share[self.outline.chunks["share"]]
        found = np.flatnonzero((generation >= 0) & self._needed)
        later = (ages - 1) - generation[found]
        columns = (found, self._rows[found], later, self._settled[found], generation[found])
        for at, rows, above, settled, number in zip(*(column.tolist() for column in columns), strict=True):
            into[number].append(Read(self.outline, at, rows, above, settled))


def replacing_in(manifest: Manifest, later: Sequence[str]) -> int:
    """How many of the checkpoints that a manifest was arranged by are on this timeline, too: its first so many."""
    return common(manifest.replacing, tuple(later))


def _plan_table(name: str, history: Sequence[Sequence[Source]], views: Mapping[Outline, _View]) -> TablePlan:
    shares: list[list[tuple[Outline, int]]] = []  # newest checkpoint first
    spec: TableSpec | None = None
    for age in range(len(history) - 1, -1, -1):
        found = [(outline, views[outline].named.get((part, name))) for outline, part in history[age]]
        shares.append([(outline, share) for outline, share in found if share is not None])
        here = [outline.shares[share] for outline, share in shares[-1]]
        spec = spec or here[0].spec
        if any(share.spec is not spec and share.spec != spec for share in here):
            raise DamagedData(
                _checkpoint(history[age]), f"table {name} changes its shape below a delta that stands on it"
            )
        if here and all(share.whole for share in here):
            return _plan_shares(spec, shares[::-1], views, baseline=age == 0)
    raise DamagedData(_checkpoint(history[0]), f"no checkpoint below holds every row of table {name}")


def _checkpoint(parts: Sequence[Source]) -> str:
    outline, part = parts[0]
    return outline.parts[part].checkpoint


def _plan_shares(
    spec: TableSpec,
    shares: Sequence[Sequence[tuple[Outline, int]]],
    views: Mapping[Outline, _View],
    *,
    baseline: bool,
) -> TablePlan:
    """The plan of a table from its shares, those that hold all rows first."""
    generations: list[list[Read]] = [[] for _ in shares]
    numbers: dict[Outline, dict[int, int]] = {}
    for number, generation in enumerate(shares):
        for outline, share in generation:
            numbers.setdefault(outline, {})[share] = number
    for outline, found in numbers.items():
        views[outline].reads(found, len(shares), generations)
    above = [read for generation in generations[1:] for read in generation]
    coded = any(form.codec != EXACT for outline in numbers for form in outline.forms)
    differs = coded and any(read.baseline is not None for read in above)
    return TablePlan(
        spec=spec,
        generations=tuple(map(tuple, generations)),
        baseline=baseline,
        arranged=differs or any(_is_arranged(read) for read in above),
        key=tuple(generations[0]) if differs else (),
    )


def _is_arranged(read: Read) -> bool:
    chunks = read.outline.chunks
    return bool(chunks["segments"][read.at] or chunks["through"][read.at])
