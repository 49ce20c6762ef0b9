"""Reads, verifies and applies planned rows, in parallel and in bounded memory.

Within a generation each row occurs once, so its chunks may be applied in any order. Plain increments are replayed, with
a barrier between generations, so the newest row wins without sorting. In a grid, no record is written that another one
replaces: its position says so or, for records not arranged yet, the ids of later ones do. So its generations need
neither order nor barriers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_reads import Read, Reads
from holdfast.checkpoint.read.crew import WORKERS, Crew, Progress
from holdfast.checkpoint.read.fetcher import ChunkSource, Fetcher
from holdfast.checkpoint.read.key_frame import key_of, require_key
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.batch import Batch, WrittenOnce
from holdfast.checkpoint.restore.bundle_files import Files
from holdfast.checkpoint.restore.columns import (
    ColumnTarget,
    Ids,
    Scratch,
    decode_columns,
    read_columns,
    row_ids,
)
from holdfast.checkpoint.restore.native_rows import Kept, NativeWork
from holdfast.checkpoint.restore.spans import ReadSpan, spans_of
from holdfast.checkpoint.restore.winners import Winners
from holdfast.codec.base import Rows
from holdfast.errors import DamagedData
from holdfast.format.layout import IDS

_REMOTE_WORKERS = 8  # these mostly wait

RowsSeen = Callable[[str, Ids | None], None]  # rows read from a delta, wanted or not; None: all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """What is wanted of a table, and where it goes: ``rows`` of the columns that have a target, by name."""

    plan: TablePlan
    columns: Mapping[str, ColumnTarget]
    rows: range | None = None  # None: all

    @property
    def range(self) -> range:
        """The rows, by their numbers in the table."""
        return range(self.plan.spec.rows) if self.rows is None else self.rows


def write_rows(
    fetcher: Fetcher,
    wanted: Iterable[WantedRows],
    *,
    seen: RowsSeen | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> None:
    """Write every planned row that is wanted to where it goes."""
    workers = workers or (_REMOTE_WORKERS if fetcher.is_remote else WORKERS)
    tables = [_Table(fetcher, each, seen) for each in wanted]
    arranged = [table for table in tables if table.plan.arranged]
    replayed = [table for table in tables if not table.plan.arranged]
    files = Files(fetcher)
    with Crew(workers, progress) as crew:
        _write(files, crew, [(table, table.first()) for table in tables if table.plan.has_first])
        _write(files, crew, [(table, table.above(in_order=True)) for table in replayed])
        kept = _settle(files, crew, arranged)
        _write(files, crew, [(table, table.above(in_order=False)) for table in arranged], kept)
    for table in arranged:
        table.check_once()


def _write(files: Files, crew: Crew, work: Iterable[tuple[_Table, Batch]], kept: Kept | None = None) -> None:
    """Write batches of reads, group by group: without the GIL what can be, and the rest as well."""
    work = [each for each in work if len(each[1].reads)]
    if not work:
        return
    pieces = NativeWork(files, [batch for _, batch in work], kept)
    for group in pieces.groups:
        pieces.apply(crew, group)
        left = pieces.left(group)
        _doubt(files.fetcher, [work[each.batch][1].reads[each.read] for each in left if each.is_spoilt])
        rest = [_left_of(*work[each.batch], each.read) for each in left]
        spans = spans_of([read for _, read, _ in rest], [table.wanted(read) for table, read, _ in rest])
        crew.do(partial(_apply, files.fetcher, span, rest) for span in spans)
    for number, (table, batch) in enumerate(work):
        table.tell_all(batch, pieces.done(number), pieces.written(number))
        crew.count(partial(_size_bytes, batch.reads, pieces.done(number)))


def _left_of(table: _Table, batch: Batch, number: int) -> tuple[_Table, Read, int]:
    return table, batch.reads[number], int(batch.reads.generation[number])


def _doubt(fetcher: Fetcher, spoilt: Iterable[Read]) -> None:
    """What is read in the plain way now was read before: nothing is healed in silence."""
    for read in spoilt:
        fetcher.doubt(read.bundle.name)


def _size_bytes(reads: Reads, which: NDArray[np.bool_]) -> int:
    return sum(reads[number].size_bytes for number in np.flatnonzero(which).tolist())


def _apply(fetcher: Fetcher, span: ReadSpan, work: Sequence[tuple[_Table, Read, int]]) -> int:
    """Read a span and write its records; returns their bytes."""
    source = _source(fetcher, span)
    return sum(table.apply(read, number, source) for table, read, number in (work[each] for each in span.members))


def _source(fetcher: Fetcher, span: ReadSpan) -> ChunkSource:
    return fetcher.held(span.bundle, span.start, span.stop) if len(span.members) > 1 else fetcher


def _settle(files: Files, crew: Crew, tables: Sequence[_Table]) -> Kept | None:
    """Read the ids that decide which records are the newest of their rows, without the GIL if possible.

    The rows come along, since whole blocks are read; what was read is returned.
    """
    work = [(table, batch) for table in tables if (batch := table.contest()) is not None]
    if not work:
        return None
    pieces = NativeWork(files, [batch for _, batch in work])
    pieces.apply(crew, 0)
    left = pieces.left(0)
    _doubt(files.fetcher, [work[each.batch][1].reads[each.read] for each in left if each.is_spoilt])
    rest = [(*work[each.batch], each.read) for each in left]
    spans = spans_of([batch.reads[number] for _, batch, number in rest], [(IDS,)] * len(rest))
    crew.do((partial(_read_ids, files.fetcher, span, rest) for span in spans), alone=not files.fetcher.is_remote)
    for table, batch in work:
        table.settle(batch)
    return pieces.kept()


def _read_ids(fetcher: Fetcher, span: ReadSpan, work: Sequence[tuple[_Table, Batch, int]]) -> int:
    source = _source(fetcher, span)
    for table, batch, number in (work[each] for each in span.members):
        table.read_ids(batch, number, source)
    return 0


class _Table:
    """The restore of one table."""

    def __init__(self, fetcher: Fetcher, wanted: WantedRows, seen: RowsSeen | None) -> None:
        self._rows = wanted.range
        self.plan = wanted.plan.within(self._rows)
        self._seen = seen
        self._scratch = Scratch()
        self._winners: Winners | None = None
        self._once = WrittenOnce(self._rows) if self.plan.arranged else None
        self._baseline = BaselineRows(fetcher, self.plan, wanted.columns)
        self._writers = wanted.columns

    def first(self) -> Batch:
        """The reads of the first generation."""
        return self._batch(self.plan.reads.first_generation(), told=not self.plan.baseline)

    def above(self, *, in_order: bool) -> Batch:
        """Those of all others, in the order of their generations or in any."""
        return self._batch(self.plan.reads.above(), told=True, in_order=in_order)

    def _batch(self, reads: Reads, *, told: bool, in_order: bool = False) -> Batch:
        is_above = bool(len(reads)) and bool(reads.generation[0])  # then all of them are
        return Batch(
            spec=self.plan.spec,
            reads=reads,
            groups=reads.generation if in_order else np.zeros_like(reads.generation),
            writers=self._writers,
            wanted=self._rows,
            newest=self._winners.newest if self._winners else None,
            ids_out=np.empty(int(reads.rows.sum()), dtype=np.int64) if told and self._seen is not None else None,
            once=self._once if is_above else None,
        )

    def contest(self) -> Batch | None:
        """The chunks that may replace records of a contested one: their ids must be known before it is settled."""
        reads = self.plan.reads
        contested = (reads.generation > 0) & reads.contested
        if not contested.any():
            return None
        first = int((reads.generation + 1 + reads.settled)[contested].min())
        chosen = reads.chosen(reads.generation >= first)
        ids = np.empty(int(chosen.rows.sum()), dtype=np.int64)
        groups = np.zeros_like(chosen.generation)
        return Batch(
            spec=self.plan.spec,
            reads=chosen,
            groups=groups,
            writers=self._writers,
            wanted=self._rows,
            ids_out=ids,
            ids_alone=True,
        )

    def read_ids(self, batch: Batch, number: int, source: ChunkSource) -> None:
        """Learn the ids of a chunk of the contest in the plain way."""
        self._scratch.begin()
        read, start = batch.reads[number], int(batch.starts[number])
        found = row_ids(read, read_columns(source, read, {IDS}, self._scratch))
        assert batch.ids_out is not None
        batch.ids_out[start : start + read.rows] = (
            np.arange(read.chunk.first, read.chunk.first + read.rows) if found is None else found
        )

    def settle(self, contest: Batch) -> None:
        """Decide the contest, once all its ids are read."""
        self._winners = Winners(contest, self.plan.depth)

    def wanted(self, read: Read) -> Collection[str]:
        """The columns of a chunk to read; its ids are known if they were in a contest."""
        known = self._winners is not None and self._winners.ids(read) is not None
        return self._writers.keys() if known else self._writers.keys() | {IDS}

    def apply(self, read: Read, number: int, source: ChunkSource) -> int:
        """Read records and write those that no later generation replaces."""
        self._scratch.begin()
        winners = self._winners
        known = winners.ids(read) if winners else None
        columns = read_columns(source, read, self.wanted(read), self._scratch)
        ids = row_ids(read, columns) if known is None else known
        contested = winners is not None and read.contested and number > 0
        if contested and ids is None:  # one writer saved its share whole, and later checkpoints replace rows of it
            ids = np.arange(read.chunk.first, read.chunk.first + read.rows)
        chosen = winners.chosen(ids, number) if winners and contested and ids is not None else None
        values = decode_columns(read, columns, lambda: self._baseline.rows(read, ids))
        for name, writer in self._writers.items():
            writer.write(values[name], read.rows, read.chunk.first, ids, chosen)
        self.tell(read, ids, number)
        return read.size_bytes

    def check_once(self) -> None:
        """Every row above the first generation was written once, or the records say wrong things of each other."""
        if self._once is not None and not self._once.holds:
            newest = self.plan.generations[-1] or self.plan.generations[0]
            name = newest[0].checkpoint if newest else self.plan.spec.name
            raise DamagedData(name, f"is based on increments that hold rows of table {self.plan.spec.name} twice")

    def tell(self, read: Read, ids: Ids | None, number: int) -> None:
        """These rows are restored from above the baseline."""
        if self._once is not None and number:
            where = np.arange(read.chunk.first, read.chunk.first + read.rows) if ids is None else ids
            chosen = self._winners.chosen(where, number) if self._winners and read.contested else None
            self._once.add(where if chosen is None else where[chosen])
        if self._seen is not None and (number or not self.plan.baseline):
            self._seen(self.plan.spec.name, None if read.part.whole or ids is None else ids)

    def tell_all(self, batch: Batch, done: NDArray[np.bool_], written: int) -> None:
        """The rows of those of a batch's reads that are done, at once; so many were written."""
        if batch.once is not None:
            batch.once.count(written)
        if batch.ids_out is None or self._seen is None or not done.any():
            return
        reads = batch.reads.chosen(done)
        ids = batch.ids_out if done.all() else batch.ids_out[np.repeat(done, batch.reads.rows)]
        whole = any(reads[number].part.whole for number in range(len(reads)))
        self._seen(self.plan.spec.name, None if whole else ids)


class BaselineRows:
    """What the differences of a table are added to.

    Each row above the baseline is written once, by whatever is the newest of it. So until then a target holds the
    baseline's row, if it was restored before and in the type it was stored in; else the row is read again.
    """

    def __init__(self, fetcher: Fetcher, plan: TablePlan, targets: Mapping[str, ColumnTarget]) -> None:
        self._key = key_of(fetcher, plan)
        self._target = targets.get(plan.spec.weight.name) if plan.has_first else None

    def rows(self, read: Read, ids: Ids | None) -> Rows:
        """The baseline's rows for the records of a chunk."""
        key, ids = require_key(self._key, read, ids)
        held = self._target.held(ids) if self._target is not None else None
        return key.rows(ids) if held is None else held
