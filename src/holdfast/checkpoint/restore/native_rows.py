"""Hands planned reads to threads that run without the GIL, if the store has files and the tensors are plain memory.

Reads are many and small, and so are tables. So the threads' input is computed in columns, for all similar reads at
once, whatever table they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_reads import Numbers
from holdfast.checkpoint.read.crew import Crew
from holdfast.checkpoint.restore.batch import Batch
from holdfast.checkpoint.restore.bundle_files import Files, address_of
from holdfast.checkpoint.restore.native_layout import PIECE
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import padded, row_bytes
from holdfast.format.manifest import EXACT
from holdfast.format.outline import Outline

_ID_KINDS = ("U32", "U64")
_ID_OUT_BYTES = 8
_KEPT_BYTES = 32 * 2**20
Kept: TypeAlias = Any  # of kernels that may not be there: native.Held


class NativeWork:
    """What can be done this way of some batches. The rest, for whatever reason, needs another way.

    What others have ``kept`` is not read again.
    """

    def __init__(self, files: Files, batches: Sequence[Batch], kept: Kept | None = None) -> None:
        kernels = _kernels()
        lengths = [len(batch.reads) for batch in batches]
        self._batch = np.repeat(np.arange(len(batches)), lengths)
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
        self._group = _joined([batch.groups for batch in batches])
        self._written = np.zeros(len(self._batch), dtype=np.int64)
        self._done, self._spoilt = np.zeros((2, len(self._batch)), dtype=bool)
        built = _built(files, batches, self._batch) if kernels is not None else []
        self._pointed = built, batches, files  # what addresses point into
        self._shared = None
        positions = _joined([each.positions for each in built])
        if kernels is not None and len(positions):
            pieces = np.concatenate([each.pieces for each in built])
            order = np.lexsort(
                (pieces["offset"], pieces["path"], self._group[positions])
            )  # by group, by file, by offset
            self._positions = positions[order]  # of each piece, among all reads
            hold = _KEPT_BYTES if any(batch.ids_alone for batch in batches) else 0
            groups = self._group[self._positions]
            self._shared = kernels.Pieces(pieces[order], groups, kernels.functions(), held=kept, hold=hold)

    @property
    def groups(self) -> list[int]:
        """Their numbers, in the order they are to be worked on."""
        return _values(self._group)

    def apply(self, crew: Crew, group: int) -> None:
        """Process a group."""
        if self._shared is not None and (reads := self._shared.choose(group)):
            shared = self._shared
            crew.together(lambda: shared.work(np.empty(shared.memory_bytes, dtype=np.uint8)), limit=reads)
            self._done[self._positions] = shared.done()
            self._written[self._positions] = shared.written()
            self._spoilt[self._positions] = shared.spoilt()

    def kept(self) -> Kept | None:
        """The bytes of reads of ids alone, if they are not too many."""
        return self._shared.held() if self._shared is not None else None

    def done(self, batch: int) -> NDArray[np.bool_]:
        """Of each read of a batch whether it was done."""
        return self._done[self._starts[batch] : self._starts[batch + 1]]

    def written(self, batch: int) -> int:
        """How many rows of a batch were written."""
        return int(self._written[self._starts[batch] : self._starts[batch + 1]].sum())

    def left(self, group: int) -> list[Left]:
        """What of a group was not done."""
        found = np.flatnonzero((self._group == group) & ~self._done)
        batches = self._batch[found]
        columns = (batches, found - self._starts[batches], self._spoilt[found])
        return [Left(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]


class Left(NamedTuple):
    """A read that was not done."""

    batch: int  # its number
    read: int  # its number in the batch
    is_spoilt: bool  # it was tried, and what came is not what was written


class _Target(NamedTuple):
    """A table's columns, and where those that are wanted go."""

    widths: tuple[int, ...]  # of all columns, bytes of a row
    wanted: tuple[bool, ...]
    addresses: tuple[int, ...]  # of row 0 in memory; 0 for columns that are not wanted
    low: int  # the first row that is wanted,
    high: int  # and the one after the last
    newest: int  # address of the newest generation of the table's row 0; 0 where nothing is contested
    newest_width: int
    ids_out: int  # address, or 0
    marks: int  # address for row 0, or 0
    ids_alone: bool

    @classmethod
    def of(cls, batch: Batch) -> _Target | None:
        """None if a wanted column cannot be written this way."""
        widths = tuple(row_bytes([column]) for column in batch.spec.columns)
        wanted = tuple(column.name in batch.writers for column in batch.spec.columns)
        addresses = [0] * len(widths)
        for number, column in enumerate(batch.spec.columns):
            if wanted[number]:
                scatter = batch.writers[column.name].scatter
                if scatter is None or scatter.width != widths[number]:
                    return None
                addresses[number] = scatter.address
        newest, low = batch.newest, batch.wanted.start
        return cls(
            widths=widths,
            wanted=wanted,
            addresses=tuple(addresses),
            low=low,
            high=batch.wanted.stop,
            newest=0 if newest is None else address_of(newest) - low * newest.itemsize,
            newest_width=1 if newest is None else newest.itemsize,
            ids_out=0 if batch.ids_out is None else address_of(batch.ids_out),
            marks=0 if batch.once is None else address_of(batch.once.marks) - low,
            ids_alone=batch.ids_alone,
        )


def _built(files: Files, batches: Sequence[Batch], of_read: Numbers) -> list[_Alike]:
    """The pieces of all reads that can be done this way, those together whose chunks and tables are laid out alike."""
    targets = [_Target.of(batch) for batch in batches]
    layouts = {(each.widths, each.wanted): each for each in targets if each is not None}
    numbers = {layout: number for number, layout in enumerate(layouts)}
    layout = np.array([-1 if each is None else numbers[each.widths, each.wanted] for each in targets], dtype=np.int64)
    outlines = {id(outline): outline for batch in batches for outline in batch.reads.outlines}
    reads = _Columns.of(batches, {key: number for number, key in enumerate(outlines)}, of_read)
    found: list[_Alike] = []
    for number, outline in enumerate(outlines.values()):
        here = np.flatnonzero((reads.outline == number) & (reads.rows > 0))
        form, kind = outline.chunks["form"][reads.at[here]], layout[reads.batch[here]]
        for each in _values(form):
            if outline.forms[each].codec == EXACT and outline.forms[each].ids in _ID_KINDS:
                for like in _values(kind[(form == each) & (kind >= 0)]):
                    alike = reads.chosen(here[(form == each) & (kind == like)])
                    found.append(_Alike(files, outline, itemsize(str(outline.forms[each].ids)), alike, targets))
    return found


class _Columns(NamedTuple):
    """The reads of all batches, in columns."""

    position: Numbers
    batch: Numbers
    outline: Numbers
    at: Numbers
    rows: Numbers
    generation: Numbers
    contested: Numbers  # 0 or 1
    ids_start: Numbers  # where among the ids of its batch its own begin

    @classmethod
    def of(cls, batches: Sequence[Batch], outlines: Mapping[int, int], of_read: Numbers) -> _Columns:
        numbers = [np.array([outlines[id(each)] for each in batch.reads.outlines] or [0]) for batch in batches]
        return cls(
            position=np.arange(len(of_read)),
            batch=of_read,
            outline=_joined([number[batch.reads.outline] for number, batch in zip(numbers, batches, strict=True)]),
            at=_joined([batch.reads.at for batch in batches]),
            rows=_joined([batch.reads.rows for batch in batches]),
            generation=_joined([batch.reads.generation for batch in batches]),
            contested=_joined([batch.reads.contested for batch in batches]),
            ids_start=_joined([batch.starts[:-1] for batch in batches]),
        )

    def chosen(self, which: Numbers) -> _Columns:
        return _Columns(*(column[which] for column in self))


class _Alike:
    """NativeWork of chunks of one form, of tables with the same layout, and what their addresses point to."""

    def __init__(
        self, files: Files, outline: Outline, ids: int, reads: _Columns, targets: Sequence[_Target | None]
    ) -> None:
        self._outline, self._ids, self._reads = outline, ids, reads
        self._used, self._table = np.unique(reads.batch, return_inverse=True)
        self._targets = [target for number in self._used.tolist() if (target := targets[number]) is not None]
        columns, lengths, chosen = self._places()
        self._names, paths, checksums, blocks = files.of(outline, np.where(chosen, self._of("bundle"), -1))
        block = self._of("block")
        chosen &= (paths != 0) & (block + lengths // -BLOCK_BYTES * -1 <= blocks)
        kept = np.flatnonzero(chosen)
        self.positions = reads.position[kept]
        self._columns = np.ascontiguousarray(columns)
        ids_out = self._of_table([target.ids_out for target in self._targets])
        self.pieces = np.zeros(len(paths), dtype=PIECE)
        fields = {
            "path": paths,
            "offset": self._of("offset"),
            "length": lengths,
            "checksums": checksums + 4 * block,
            "block_bytes": BLOCK_BYTES,
            "ids_width": ids,
            "first": self._of("first"),
            "rows": reads.rows,
            "columns": self._columns.ctypes.data + columns[0].nbytes * np.arange(len(paths)),
            "column_count": self._of_table([0 if target.ids_alone else columns.shape[1] for target in self._targets]),
            "span": self._of("last") - self._of("first"),
            "ids_count": self._of("rows"),
            **self._segments(),
            "low": self._of_table([target.low for target in self._targets]),
            "high": self._of_table([target.high for target in self._targets]),
            "newest": np.where(reads.contested, self._of_table([target.newest for target in self._targets]), 0),
            "newest_width": self._of_table([target.newest_width for target in self._targets]),
            "number": reads.generation,
            "ids_out": np.where(ids_out, ids_out + _ID_OUT_BYTES * reads.ids_start, 0),
            "marks": self._of_table([target.marks for target in self._targets]),
        }
        for name, values in fields.items():
            self.pieces[name] = values
        self.pieces = self.pieces[kept]

    def _of(self, name: str) -> Numbers:
        found: Numbers = self._outline.chunks[name][self._reads.at]
        return found

    def _of_table(self, numbers: Sequence[int]) -> Numbers:
        found: Numbers = np.array(numbers, dtype=np.int64)[self._table]
        return found

    def _places(self) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
        """Offset, width and target of each wanted column; how much to read; whether that is one range."""
        rows, all_rows = self._reads.rows, self._of("rows")
        offset, stop = padded(all_rows * self._ids), all_rows * self._ids
        is_one = np.ones(len(all_rows), dtype=bool)
        found: list[Numbers] = []
        for number, (width, is_wanted) in enumerate(zip(self._targets[0].widths, self._targets[0].wanted, strict=True)):
            if is_wanted:
                is_one &= offset - stop <= BLOCK_BYTES
                stop = offset + rows * width
                address = self._of_table([target.addresses[number] for target in self._targets])
                found.append(np.stack([offset, np.full_like(offset, width), address], axis=1))
            offset = offset + padded(all_rows * width)
        lengths = np.minimum(stop // -BLOCK_BYTES * -BLOCK_BYTES, self._of("length"))
        columns = np.stack(found, axis=1) if found else np.zeros((len(all_rows), 0, 3), dtype=np.int64)
        return columns, lengths, is_one

    def _segments(self) -> dict[str, Numbers]:
        """Addresses of where the segments of each chunk begin, and how many these are; all ids are one without any."""
        counts = self._of("segments")
        first = np.cumsum(self._outline.chunks["segments"])[self._reads.at] - counts
        rows = self._outline.segments[:, 1].astype(np.int64)
        sums = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), rows]))
        own = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        starts = sums[own] - np.repeat(sums[first], counts)
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), starts])
        places = np.where(counts > 0, 1 + np.cumsum(counts) - counts, 0)
        return {"segments": address_of(self._starts) + 8 * places, "segment_count": np.maximum(counts, 1)}


def warm_up() -> None:
    """Compile or load now what reads rows without the GIL."""
    _kernels()


def _values(numbers: Numbers) -> list[int]:
    """The different ones among small numbers, none of them negative, in their order."""
    found: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return found


def _joined(arrays: Sequence[NDArray[Any]]) -> Numbers:
    return np.concatenate([np.zeros(0, dtype=np.int64), *arrays])


@cache
def _kernels() -> ModuleType | None:
    try:
        from holdfast.checkpoint.restore import native
    except ImportError:
        return None
    return native if native.functions() is not None else None
