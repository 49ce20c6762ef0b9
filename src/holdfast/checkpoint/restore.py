"""Puts saved rows and state back: reads, verifies and applies what was planned, in parallel, in bounded memory.

Within a generation each row stands once, so its chunks go in any order. Plain increments are replayed: between their
generations there is a barrier, and so the newest row wins without anything being sorted. Of a grid no record is
written that another one replaces: its place says so, or, for records not arranged yet, the ids of the later ones do.
So its generations need no order, and no barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.columns import ColumnWriter, Ids, Scratch, as_tensor, decode_columns, read_columns, row_ids
from holdfast.checkpoint.crew import WORKERS, Crew, Progress
from holdfast.checkpoint.keyframe import key_of, require_key
from holdfast.checkpoint.pieces import Application, Pieces, apply_pieces
from holdfast.checkpoint.plan import Read, TablePlan
from holdfast.checkpoint.read import ChunkSource, VerifiedReader
from holdfast.checkpoint.spans import Span, spans_of
from holdfast.codec.base import Rows
from holdfast.errors import DamagedData
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import IDS, padded
from holdfast.format.manifest import Manifest
from holdfast.format.tree import decode_tree

_REMOTE_WORKERS = 8  # these mostly wait

Targets = dict[str, Tensor]  # by column name: where a table's rows go
RowsSeen = Callable[[str, Tensor | None], None]  # rows restored from a delta; None: all of them


def restore_rows(
    reader: VerifiedReader,
    plans: Iterable[tuple[TablePlan, Targets]],
    *,
    seen: RowsSeen | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> None:
    """Write every planned row into its targets."""
    workers = workers or (_REMOTE_WORKERS if reader.is_remote else WORKERS)
    tables = [_Table(reader, plan, targets, seen) for plan, targets in plans]
    arranged = [table for table in tables if table.plan.arranged]
    replayed = [table for table in tables if not table.plan.arranged]
    with Crew(workers, progress) as crew:
        _write(reader, crew, tables, [[0]])
        _write(reader, crew, replayed, [[number] for number in range(1, _depth(replayed))])
        _learn_ids(reader, crew, [(table, read) for table in arranged for read in table.contest()])
        for table in arranged:
            table.settle()
        _write(reader, crew, arranged, [range(1, _depth(arranged))])
    for table in arranged:
        table.check_once()


def _write(reader: VerifiedReader, crew: Crew, tables: Iterable[_Table], groups: Sequence[Sequence[int]]) -> None:
    """Write groups of generations, one after another; within a group they go in any order.

    Without the GIL what can be, and the rest as well.
    """
    tables = list(tables)
    reads = [[(t, read, number) for t in tables for number in group for read in t.reads(number)] for group in groups]
    work = [[table.application(read, number) for table, read, number in group] for group in reads]
    pieces = Pieces(reader, work)
    for at, group in enumerate(reads):
        done = pieces.apply(crew, at)
        for (table, read, number), application, is_done in zip(group, work[at], done, strict=True):
            if is_done:
                table.tell(read, application.ids_out, number)
                crew.count(partial(getattr, read, "size_bytes"))
        rest = [each for each, is_done in zip(group, done, strict=True) if not is_done]
        spans = spans_of([read for _, read, _ in rest], [table.wanted(read) for table, read, _ in rest])
        crew.do(partial(_apply, reader, span, rest) for span in spans)


def _apply(reader: VerifiedReader, span: Span, work: Sequence[tuple[_Table, Read, int]]) -> int:
    """Read a span and write the records in it; how many bytes of them."""
    source = _source(reader, span)
    return sum(table.apply(read, number, source) for table, read, number in (work[each] for each in span.members))


def _source(reader: VerifiedReader, span: Span) -> ChunkSource:
    return reader.held(span.bundle, span.start, span.stop) if len(span.members) > 1 else reader


def _learn_ids(reader: VerifiedReader, crew: Crew, wanted: Sequence[tuple[_Table, Read]]) -> None:
    """Read the ids of these records, without the GIL where that is possible."""
    work = [
        Application(read=read, number=0, writers=table.no_writers, ids_out=np.empty(read.rows, dtype=np.int64))
        for table, read in wanted
    ]
    rest: list[tuple[_Table, Read]] = []
    for each, application, is_done in zip(wanted, work, apply_pieces(reader, crew, work), strict=True):
        if is_done and application.ids_out is not None:
            each[0].learn(each[1], application.ids_out)
        else:
            rest.append(each)
    spans = spans_of([read for _, read in rest], [(IDS,)] * len(rest))
    crew.do((partial(_read_ids, reader, span, rest) for span in spans), alone=not reader.is_remote)


def _read_ids(reader: VerifiedReader, span: Span, work: Sequence[tuple[_Table, Read]]) -> int:
    source = _source(reader, span)
    for table, read in (work[each] for each in span.members):
        table.read_ids(read, source)
    return 0


def _depth(tables: Iterable[_Table]) -> int:
    return max((len(table.plan.generations) for table in tables), default=0)


class _Table:
    """One table's restore."""

    def __init__(self, reader: VerifiedReader, plan: TablePlan, targets: Targets, seen: RowsSeen | None) -> None:
        self.plan = plan
        self.no_writers: dict[str, ColumnWriter] = {}  # for reads of ids alone
        self._seen = seen
        self._scratch = Scratch()
        self._contest: list[tuple[int, Read]] = []
        self._ids: dict[tuple[str, int], Ids] = {}
        self._winners: Winners | None = None
        self._once = WrittenOnce(plan.spec.rows) if plan.arranged else None
        self._baseline = BaselineRows(reader, plan, targets)
        self._writers = {
            column.name: ColumnWriter(targets[column.name], column.dtype, column.row_shape)
            for column in plan.spec.columns
            if column.name in targets
        }

    def reads(self, number: int) -> tuple[Read, ...]:
        """What one generation consists of."""
        return self.plan.generations[number] if number < len(self.plan.generations) else ()

    def application(self, read: Read, number: int) -> Application:
        """What to do with records, for threads that need no GIL."""
        told = self._seen is not None and (number > 0 or not self.plan.baseline) and not read.part.whole
        counted = self._once is not None and number > 0
        return Application(
            read=read,
            number=number,
            writers=self._writers,
            newest=self._winners.newest if self._winners else None,
            ids_out=np.empty(read.rows, dtype=np.int64) if told or counted else None,
        )

    def contest(self) -> Iterator[Read]:
        """The chunks that may replace records of a contested one: their ids must be known before it is settled."""
        numbered = [(number, read) for number, reads in enumerate(self.plan.generations) if number for read in reads]
        first = min((number + 1 + read.settled for number, read in numbered if read.contested), default=None)
        if first is not None:
            self._contest = [(number, read) for number, read in numbered if number >= first]
        yield from (read for _, read in self._contest)

    def learn(self, read: Read, ids: Ids) -> None:
        """The ids of a chunk of the contest."""
        self._ids[read.key] = ids

    def settle(self) -> None:
        """Decide the contest, once all its ids are read."""
        if self._contest:
            self._winners = Winners(self.plan.spec.rows, len(self.plan.generations))
            for number, read in self._contest:
                self._winners.add(read, self._ids.pop(read.key), number)

    def read_ids(self, read: Read, source: ChunkSource) -> None:
        """Learn the ids of a chunk in the plain way."""
        self._scratch.begin()
        found = row_ids(read, read_columns(source, read, {IDS}, self._scratch))
        self.learn(read, np.arange(read.chunk.first, read.chunk.first + read.rows) if found is None else found)

    def wanted(self, read: Read) -> Collection[str]:
        """The columns of a chunk to read; its ids are known if they were in a contest."""
        known = self._winners is not None and self._winners.ids(read) is not None
        return self._writers.keys() if known else self._writers.keys() | {IDS}

    def apply(self, read: Read, number: int, source: ChunkSource) -> int:
        """Read records and write those of them that no later generation replaces."""
        self._scratch.begin()
        winners = self._winners
        known = winners.ids(read) if winners else None
        columns = read_columns(source, read, self.wanted(read), self._scratch)
        ids = row_ids(read, columns) if known is None else known
        chosen = winners.chosen(ids, number) if winners and read.contested and ids is not None else None
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
            raise DamagedData(name, f"stands on increments in which rows of table {self.plan.spec.name} live twice")

    def tell(self, read: Read, ids: Ids | None, number: int) -> None:
        """These rows are restored from above the baseline."""
        if self._once is not None and number:
            where = np.arange(read.chunk.first, read.chunk.first + read.rows) if ids is None else ids
            chosen = self._winners.chosen(where, number) if self._winners and read.contested else None
            self._once.add(where if chosen is None else where[chosen])
        if self._seen is not None and (number or not self.plan.baseline):
            self._seen(self.plan.spec.name, None if read.part.whole or ids is None else torch.from_numpy(ids))


class BaselineRows:
    """What the differences of a table are added to.

    Each row above the baseline is written once, by whatever is the newest of it. So until then a target holds the
    baseline's row, if it was restored before and in the type it was stored in; else the row is read again.
    """

    def __init__(self, reader: VerifiedReader, plan: TablePlan, targets: Targets) -> None:
        self._key = key_of(reader, plan)
        weight = plan.spec.columns[0]
        target = targets.get(weight.name) if plan.generations[0] else None
        self._target = target if target is not None and target.dtype == torch_dtype(weight.dtype) else None

    def rows(self, read: Read, ids: Ids | None) -> Rows:
        """The baseline's rows for the records of a chunk."""
        key, ids = require_key(self._key, read, ids)
        if self._target is None:
            return key.rows(ids)
        found = self._target.index_select(0, torch.from_numpy(ids).to(self._target.device)).cpu()
        found = found.reshape(len(ids), -1)
        return found.view(torch.int16).numpy().view(np.uint16) if found.dtype == torch.bfloat16 else found.numpy()


class WrittenOnce:
    """The rows of a table that were written, to know that none was twice: eight bytes for each. For several threads."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._written: list[Ids] = []

    def add(self, ids: Ids) -> None:
        """These rows are written."""
        self._written.append(ids)

    @property
    def holds(self) -> bool:
        """Whether no row was written twice."""
        if not self._written:
            return True
        ids, seen = np.concatenate(self._written), np.zeros(self._rows, dtype=np.bool_)
        seen[ids] = True
        return int(np.count_nonzero(seen)) == len(ids)


class Winners:
    """The newest generation that replaces each row, of those that contest others, and the ids read to know it.

    One byte per row of the table (two above 255 generations) and eight per record of these generations: without it the
    order of reading would have to decide.
    """

    def __init__(self, rows: int, generations: int) -> None:
        self.newest: NDArray[np.unsignedinteger] = np.zeros(rows, dtype=np.min_scalar_type(generations))
        self._ids: dict[tuple[str, int], Ids] = {}

    def add(self, read: Read, ids: Ids, number: int) -> None:
        """Records of a generation that is newer than all that were added before."""
        self._ids[read.key] = ids
        self.newest[ids] = number

    def ids(self, read: Read) -> Ids | None:
        """The ids of a chunk's records if they were read already."""
        return self._ids.get(read.key)

    def chosen(self, ids: Ids, number: int) -> NDArray[np.bool_] | None:
        """Which of a generation's records are the newest of their rows; None for all."""
        mask: NDArray[np.bool_] = self.newest[ids] <= number
        return None if mask.all() else mask


def read_state(reader: VerifiedReader, manifest: Manifest) -> object:
    """The state tree that one writer saved."""
    tensors = [bytearray(tensor.length) for tensor in manifest.tensors]
    for chunk in manifest.state:
        data = reader.chunk(manifest.bundles[chunk.place.bundle], chunk.place)
        offset = 0
        for piece in chunk.pieces:
            tensors[piece.tensor][piece.start : piece.start + piece.length] = data[offset : offset + piece.length]
            offset += padded(piece.length)
    decoded = [
        as_tensor(memoryview(data), spec.dtype, spec.shape)
        for data, spec in zip(tensors[1:], manifest.tensors[1:], strict=True)
    ]
    return decode_tree(bytes(tensors[0]), decoded)
