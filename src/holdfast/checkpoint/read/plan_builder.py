"""Builds the plan of a restore from what each writer saved of a checkpoint and of those it depends on.

Many checkpoints of many tables have very many small chunks. So decisions are made for a whole outline at once, in
columns; nothing here runs once per checkpoint and table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_reads import Numbers, Reads
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.codec import Difference
from holdfast.codec.chunk import Codecs, codecs_of
from holdfast.errors import DamagedData
from holdfast.format.manifest import EXACT, Manifest
from holdfast.format.outline import Outline, common
from holdfast.types import TableSpec


class Source(NamedTuple):
    """What one writer saved of a checkpoint: a part of an outline."""

    outline: Outline
    part: int

    @property
    def checkpoint(self) -> str:
        """The id of its checkpoint."""
        return self.outline.parts[self.part].checkpoint


Part = Manifest | Source  # what one writer saved of a checkpoint
_History = Sequence[Sequence[Source]]  # of each checkpoint, baseline first


def plan_tables(history: Sequence[Sequence[Part]]) -> dict[str, TablePlan]:
    """What to read of each table of the last checkpoint in ``history`` (baseline first)."""
    sources = _outlined(history)
    numbered = _Tables(sources[-1])
    views = [_View(outline, sources, numbered) for outline in dict.fromkeys(each.outline for each in _all(sources))]
    first = _first_ages(views, sources, numbered)
    reads = _reads_by_table(views, first)
    arranged, differs = (
        np.logical_or.reduce([_any_above(view, first, marked(view.outline)) for view in views])
        for marked in (_arranged_chunks, _difference_chunks)
    )
    return {
        name: TablePlan(
            spec=numbered.specs[number],
            reads=reads[number],
            depth=len(history) - int(first[number]),
            baseline=not first[number],
            arranged=bool(arranged[number] or differs[number]),
            key=reads[number].generations(1)[0] if differs[number] else (),
        )
        for name, number in numbered.numbers.items()
    }


def _reads_by_table(views: Sequence[_View], first: Numbers) -> list[Reads]:
    """What is needed of each table, its generations in their order."""
    found = [view.needed(first) for view in views]
    table = np.concatenate([each.table for each in found])
    generation = np.concatenate([each.generation for each in found])
    order = np.lexsort((generation, table))
    whole = Reads(
        outlines=tuple(view.outline for view in views),
        outline=np.repeat(np.arange(len(views)), [len(each.at) for each in found])[order],
        at=np.concatenate([each.at for each in found])[order],
        rows=np.concatenate([each.rows for each in found])[order],
        later=np.concatenate([each.later for each in found])[order],
        settled=np.concatenate([each.settled for each in found])[order],
        generation=generation[order],
    )
    stops = np.searchsorted(table[order], np.arange(len(first) + 1)).tolist()
    return [whole.chosen(slice(start, stop)) for start, stop in pairwise(stops)]


def _outlined(history: Sequence[Sequence[Part]]) -> _History:
    """The same history, with its manifests in a new outline."""
    rest = Outline.of(part for parts in history for part in parts if isinstance(part, Manifest))
    numbers = itertools.count()
    return [
        [Source(rest, next(numbers)) if isinstance(each, Manifest) else each for each in parts] for parts in history
    ]


def _all(history: _History) -> Iterable[Source]:
    return (source for parts in history for source in parts)


class _Tables:
    """The tables of a checkpoint, numbered, each with the shape that it has there."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self.specs: list[TableSpec] = []
        self.numbers: dict[str, int] = {}
        for outline, part in parts:
            for share in outline.shares.of_part(part):
                if share.spec.name not in self.numbers:
                    self.numbers[share.spec.name] = len(self.specs)
                    self.specs.append(share.spec)

    def number(self, spec: TableSpec) -> int:
        """That of the table with this name; -1 if the checkpoint does not have it."""
        return self.numbers.get(spec.name, -1)

    def is_same(self, spec: TableSpec) -> bool:
        """Whether its table has that shape in the checkpoint."""
        number = self.number(spec)
        return number < 0 or self.specs[number] == spec


class _Needed(NamedTuple):
    """Chunks of which something is read, in columns."""

    table: Numbers
    generation: Numbers
    at: Numbers
    rows: Numbers
    later: Numbers
    settled: Numbers


class _View:
    """An outline as the last checkpoint of a history sees it: columns of its shares, and of its chunks."""

    def __init__(self, outline: Outline, history: _History, tables: _Tables) -> None:
        self.outline = outline
        shares = outline.shares
        ages, replacing = self._parts(history)
        self.table = np.array([tables.number(spec) for spec in shares.specs], dtype=np.int64)[shares.table]
        self.same = np.array([tables.is_same(spec) for spec in shares.specs], dtype=bool)[shares.table]
        self.whole = shares.whole
        self.age = np.where(self.table >= 0, ages[shares.part], -1)  # of a share's checkpoint; -1: not wanted
        self._later = len(history) - 1 - self.age
        self._choose(replacing[shares.part])

    def above(self, first: Numbers, than: int) -> NDArray[np.bool_]:
        """Of each chunk whether it belongs to a generation from number ``than`` on, and any of it is needed."""
        wanted = (self.age >= 0) & (self.age - first[self.table] >= than)
        found: NDArray[np.bool_] = wanted[self.outline.chunks["share"]] & self._needed
        return found

    def needed(self, first: Numbers) -> _Needed:
        """What is read of the outline's chunks; ``first`` are the ages of the tables' first generations."""
        found = np.flatnonzero(self.above(first, 0))
        share = self.outline.chunks["share"][found]
        table = self.table[share]
        return _Needed(
            table=table,
            generation=self.age[share] - first[table],
            at=found,
            rows=self._rows[found],
            later=self._later[share],
            settled=self._settled[found],
        )

    def _parts(self, history: _History) -> tuple[Numbers, Numbers]:
        """The age of the checkpoint of each part, -1 for those that are not in the history; and by how many of the
        checkpoints after its own, from the first one on, it was arranged.
        """
        ages = np.full(len(self.outline.parts), -1, dtype=np.int64)
        found = np.zeros(len(self.outline.parts), dtype=np.int64)
        ids = tuple(parts[0].checkpoint for parts in history)
        for age, parts in enumerate(history):
            for outline, part in parts:
                if outline is self.outline:
                    ages[part] = age
                    timeline, start, count = outline.parts[part].replacing
                    if count:
                        found[part] = common(outline.timelines[timeline][start : start + count], ids[age + 1 :])
        return ages, found

    def _choose(self, replacing: Numbers) -> None:
        """Which records of each chunk are needed, and by how many later checkpoints none of them is replaced."""
        chunks = self.outline.chunks
        replacing, whole = replacing[chunks["share"]], self.whole[chunks["share"]]
        # The rows of a table saved whole have no segments: what replaces them is written over them.
        self._rows = np.where(whole, chunks["rows"], self.outline.visible(replacing))
        self._settled = np.minimum(chunks["through"], replacing)
        self._needed = (self._rows > 0) | whole


def _first_ages(views: Sequence[_View], history: _History, tables: _Tables) -> Numbers:
    """Of each table, the age of the last checkpoint that holds every row of it: its generations begin there."""
    found = np.zeros(len(tables.specs), dtype=np.int64)
    shape = len(tables.specs), len(history)
    shares, whole, same = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for view in views:
        used = view.age >= 0
        at = view.table[used] * len(history) + view.age[used]
        for counted, weights in ((shares, None), (whole, view.whole[used]), (same, view.same[used])):
            counted += np.bincount(at, weights, minlength=counted.size).astype(np.int64).reshape(shape)
    for name, number in tables.numbers.items():
        complete = np.flatnonzero((shares[number] > 0) & (shares[number] == whole[number]))
        changed = np.flatnonzero(shares[number] != same[number])
        if len(changed) and (not len(complete) or changed[-1] >= complete[-1]):
            checkpoint = history[int(changed[-1])][0].checkpoint
            raise DamagedData(checkpoint, f"table {name} changes shape below a delta that depends on it")
        if not len(complete):
            raise DamagedData(history[0][0].checkpoint, f"no checkpoint below it holds every row of table {name}")
        found[number] = complete[-1]
    return found


def _any_above(view: _View, first: Numbers, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each table, whether a marked chunk is above its first generation."""
    found = np.zeros(len(first), dtype=bool)
    if marked.any():
        chosen = np.flatnonzero(view.above(first, 1) & marked)
        found[view.table[view.outline.chunks["share"][chosen]]] = True
    return found


def _arranged_chunks(outline: Outline) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (outline.chunks["segments"] > 0) | (outline.chunks["through"] > 0)
    return found


def _difference_chunks(outline: Outline) -> NDArray[np.bool_]:
    """Those whose weights are differences from a baseline's."""
    forms = [form.codec != EXACT and _has_difference(codecs_of(form.codec)) for form in outline.forms]
    found: NDArray[np.bool_] = np.array(forms, dtype=bool)[outline.chunks["form"]]
    return found


def _has_difference(codecs: Codecs | None) -> bool:
    return any(isinstance(codec, Difference) for codec in (codecs or {}).values())
