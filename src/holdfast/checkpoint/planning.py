"""Makes the plan of a restore from what each writer saved of a checkpoint and of those that it stands on.

Of many checkpoints there are many small chunks, so what is needed of them is decided for a whole outline at once, in
columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.plan import Read, TablePlan
from holdfast.errors import DamagedData
from holdfast.format.manifest import EXACT, Manifest
from holdfast.format.outline import Outline, Share, common
from holdfast.types import TableSpec


class Source(NamedTuple):
    """What one writer saved of a checkpoint: a part of an outline."""

    outline: Outline
    part: int

    @property
    def checkpoint(self) -> str:
        """Of which it is."""
        return self.outline.parts[self.part].checkpoint


Part = Manifest | Source  # what one writer saved of a checkpoint
_History = Sequence[Sequence[Source]]  # of each checkpoint, baseline first


class _NumberedShare(NamedTuple):
    """A part's rows of a table, by its number in an outline."""

    outline: Outline
    number: int

    @property
    def share(self) -> Share:
        return self.outline.shares[self.number]


def plan_tables(history: Sequence[Sequence[Part]]) -> dict[str, TablePlan]:
    """What to read of each table of the last checkpoint in ``history`` (baseline first)."""
    sources = _outlined(history)
    views = {outline: _View(outline, sources) for outline in {each.outline for parts in sources for each in parts}}
    names = dict.fromkeys(name for outline, part in sources[-1] for name in views[outline].tables(part))
    return {name: _plan_table(name, sources, views) for name in names}


def _outlined(history: Sequence[Sequence[Part]]) -> _History:
    """The same history, its manifests in an outline of their own."""
    rest = Outline.of(part for parts in history for part in parts if isinstance(part, Manifest))
    numbers = itertools.count()
    return [
        [Source(rest, next(numbers)) if isinstance(each, Manifest) else each for each in parts] for parts in history
    ]


class _View:
    """An outline as the last checkpoint of a history sees it."""

    def __init__(self, outline: Outline, history: _History) -> None:
        self._outline = outline
        self._numbers: list[dict[str, int]] = [{} for _ in outline.parts]  # of each part's shares, by table
        for number, share in enumerate(outline.shares):
            self._numbers[share.part][share.spec.name] = number
        of_share = np.array([share.part for share in outline.shares], dtype=np.int64)
        self._choose(self._replacing(history)[of_share[outline.chunks["share"]]])

    def tables(self, part: int) -> Sequence[str]:
        """The tables that a part has rows of."""
        return tuple(self._numbers[part])

    def share(self, part: int, table: str) -> _NumberedShare | None:
        """A part's rows of a table."""
        number = self._numbers[part].get(table)
        return None if number is None else _NumberedShare(self._outline, number)

    def reads(self, generations: Mapping[int, int], into: Sequence[list[Read]]) -> None:
        """Add what is needed of some shares to the generations whose numbers are given for them."""
        of_share = np.full(len(self._outline.shares), -1, dtype=np.int64)
        of_share[list(generations)] = list(generations.values())
        generation = of_share[self._outline.chunks["share"]]
        found = np.flatnonzero((generation >= 0) & self._needed)
        later = (len(into) - 1) - generation[found]
        columns = (found, self._rows[found], later, self._settled[found], generation[found])
        for at, rows, above, settled, number in zip(*(column.tolist() for column in columns), strict=True):
            into[number].append(Read(self._outline, at, rows, above, settled))

    def _replacing(self, history: _History) -> NDArray[np.int64]:
        """By how many of the checkpoints after its own, from the first one on, each part was arranged."""
        found = np.zeros(len(self._outline.parts), dtype=np.int64)
        ids = tuple(parts[0].checkpoint for parts in history)
        for age, parts in enumerate(history):
            for outline, part in parts:
                if outline is self._outline:
                    timeline, start, count = outline.parts[part].replacing
                    found[part] = common(outline.timelines[timeline][start : start + count], ids[age + 1 :])
        return found

    def _choose(self, replacing: NDArray[np.int64]) -> None:
        """Which records of each chunk are needed, and by how many later checkpoints none of them is replaced."""
        outline = self._outline
        whole = np.array([share.whole for share in outline.shares], dtype=bool)[outline.chunks["share"]]
        # The rows of a table saved whole have no segments: what replaces them is written over them.
        self._rows = np.where(whole, outline.chunks["rows"], outline.visible(replacing))
        self._settled = np.minimum(outline.chunks["through"], replacing)
        self._needed = (self._rows > 0) | whole


_Views = Mapping[Outline, _View]


def _plan_table(name: str, history: _History, views: _Views) -> TablePlan:
    """What stands above the last checkpoint that holds every row of a table, and that one."""
    shares: list[list[_NumberedShare]] = []  # newest checkpoint first
    for age in range(len(history) - 1, -1, -1):
        found = (views[outline].share(part, name) for outline, part in history[age])
        here = [each for each in found if each is not None]
        shares.append(here)
        spec = shares[0][0].share.spec
        if any(each.share.spec is not spec and each.share.spec != spec for each in here):
            raise DamagedData(
                history[age][0].checkpoint, f"table {name} changes its shape below a delta that stands on it"
            )
        if here and all(each.share.whole for each in here):
            return _plan_shares(spec, shares[::-1], views, baseline=age == 0)
    raise DamagedData(history[0][0].checkpoint, f"no checkpoint below holds every row of table {name}")


def _plan_shares(
    spec: TableSpec, shares: Sequence[Sequence[_NumberedShare]], views: _Views, *, baseline: bool
) -> TablePlan:
    """The plan of a table from its shares, those that hold all rows first."""
    numbers: dict[Outline, dict[int, int]] = {}  # of the generations, by share
    for number, generation in enumerate(shares):
        for outline, share in generation:
            numbers.setdefault(outline, {})[share] = number
    generations: list[list[Read]] = [[] for _ in shares]
    for outline, of_share in numbers.items():
        views[outline].reads(of_share, generations)
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
