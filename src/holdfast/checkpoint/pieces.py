"""Hands planned reads over to threads that need no GIL, where the store has files and the tensors are plain memory.

Reads are many and small, and tables are, too. So what the threads need of them is computed for all that are alike at
once, in columns, whatever table they are of.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.columns import ColumnWriter, Ids
from holdfast.checkpoint.crew import Crew
from holdfast.checkpoint.plan import Read
from holdfast.checkpoint.read import VerifiedReader
from holdfast.format.bundle import BLOCK_BYTES, Directory
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import ALIGNMENT, row_bytes
from holdfast.format.manifest import EXACT, BundleRef, RowsChunk
from holdfast.format.outline import Outline

Numbers = NDArray[np.int64]
_ID_KINDS = ("U32", "U64")


class Application(NamedTuple):
    """Records to read and where to write them; of contested ones those that no later generation replaces.

    Without writers their ids alone are read. Each table has writers of its own: by them it is told from others.
    """

    read: Read
    number: int
    writers: Mapping[str, ColumnWriter]
    newest: NDArray[np.unsignedinteger] | None = None
    ids_out: Ids | None = None  # where their row ids shall go, too


class Pieces:
    """What can be done this way of groups of applications, each of which is done before the next one begins.

    The rest, for whatever reason, needs another way.
    """

    def __init__(self, reader: VerifiedReader, groups: Sequence[Sequence[Application]]) -> None:
        kernels = _kernels()
        work = [each for group in groups for each in group]
        built = _alike(reader, _lots(work)) if kernels is not None else []
        self._kept = built, work  # what addresses point into
        self._starts = np.cumsum([0, *map(len, groups)])
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *(each.positions for each in built)])
        self._shared = None
        if kernels is not None and len(positions):
            pieces = np.concatenate([each.pieces for each in built])
            of_piece = np.searchsorted(self._starts, positions, side="right") - 1
            order = np.lexsort((pieces[:, 1], pieces[:, 0], of_piece))  # by group, by file, by offset
            self._positions = positions[order]  # in the list, of each piece
            self._shared = kernels.Pieces(pieces[order], of_piece[order], kernels.functions())

    def apply(self, crew: Crew, group: int) -> list[bool]:
        """Do the applications of a group; of each whether it is done."""
        start, stop = self._starts[group : group + 2].tolist()
        done = np.zeros(self._starts[-1], dtype=bool)
        if self._shared is not None and (reads := self._shared.choose(group)):
            shared = self._shared
            crew.together(lambda: shared.work(np.empty(shared.memory_bytes, dtype=np.uint8)), limit=reads)
            done[self._positions] = shared.done()
        found: list[bool] = done[start:stop].tolist()
        return found


def apply_pieces(reader: VerifiedReader, crew: Crew, work: Sequence[Application]) -> list[bool]:
    """Do what can be done this way; of each whether it is done."""
    return Pieces(reader, [work]).apply(crew, 0)


class _Lot(NamedTuple):
    """Applications of one table to chunks of one outline that have their form in common."""

    positions: list[int]
    work: list[Application]

    @property
    def outline(self) -> Outline:
        return self.work[0].read.outline

    @property
    def form(self) -> RowsChunk:
        return self.outline.forms[int(self.outline.chunks["form"][self.work[0].read.at])]


def _lots(work: Sequence[Application]) -> list[_Lot]:
    lots: dict[tuple[int, int, int], _Lot] = {}
    forms: dict[int, list[int]] = {}  # by outline: the form of each chunk
    for position, each in enumerate(work):
        outline = each.read.outline
        of_chunk = forms.get(id(outline))
        if of_chunk is None:
            of_chunk = forms[id(outline)] = outline.chunks["form"].tolist()
        key = id(outline), of_chunk[each.read.at], id(each.writers)
        lot = lots.get(key)
        if lot is None:
            lot = lots[key] = _Lot([], [])
        lot.positions.append(position)
        lot.work.append(each)
    return list(lots.values())


class _Target(NamedTuple):
    """A table's columns, and where those that are wanted go; where none is wanted, the ids alone are."""

    widths: tuple[int, ...]  # of all columns, bytes of a row
    wanted: tuple[bool, ...]
    addresses: tuple[int, ...]  # of row 0 in memory; 0 for columns that are not wanted
    newest: int  # address of the newest generation of each row; 0 where nothing is contested
    newest_width: int

    @classmethod
    def of(cls, lot: _Lot) -> _Target | None:
        """None if a wanted column cannot be written this way."""
        spec, writers, newest = lot.work[0].read.part.spec, lot.work[0].writers, lot.work[0].newest
        widths = tuple(row_bytes([column]) for column in spec.columns)
        wanted = tuple(column.name in writers for column in spec.columns)
        addresses = [0] * len(widths)
        for number, column in enumerate(spec.columns):
            if wanted[number]:
                scatter = writers[column.name].scatter
                if scatter is None or scatter.width != widths[number]:
                    return None
                addresses[number] = scatter.address
        width = 1 if newest is None else newest.itemsize
        return cls(widths, wanted, tuple(addresses), 0 if newest is None else newest.ctypes.data, width)


def _alike(reader: VerifiedReader, lots: Iterable[_Lot]) -> list[_Alike]:
    """Those of the lots that can be done this way, with those of other tables that are laid out as theirs is."""
    files = _Files(reader)
    kinds: dict[tuple[object, ...], list[tuple[_Lot, _Target]]] = {}
    for lot in lots:
        form, target = lot.form, _Target.of(lot)
        if target is not None and form.codec == EXACT and form.ids in _ID_KINDS:
            kinds.setdefault((id(lot.outline), form.ids, target.widths, target.wanted), []).append((lot, target))
    return [_Alike(files, [lot for lot, _ in kind], [target for _, target in kind]) for kind in kinds.values()]


class _Alike:
    """Pieces of tables with the same layout, and what their addresses point to."""

    def __init__(self, files: _Files, lots: Sequence[_Lot], targets: Sequence[_Target]) -> None:
        self._outline, self._ids = lots[0].outline, itemsize(str(lots[0].form.ids))
        self._targets = targets
        self._work = [each for lot in lots for each in lot.work]
        self._table = np.repeat(np.arange(len(lots)), [len(lot.work) for lot in lots])
        self._at = np.array([each.read.at for each in self._work])
        self._rows = np.array([each.read.rows for each in self._work], dtype=np.int64)
        columns, lengths, chosen = self._places()
        chosen &= self._rows > 0
        self._names, paths, checksums, blocks = files.of(self._outline, np.where(chosen, self._of("bundle"), -1))
        block = self._of("block")
        chosen &= (paths != 0) & (block + lengths // -BLOCK_BYTES * -1 <= blocks)
        kept = np.flatnonzero(chosen)
        self.positions = np.array([position for lot in lots for position in lot.positions], dtype=np.int64)[kept]
        self._columns = np.ascontiguousarray(columns)
        self.pieces = np.stack(
            [
                paths,
                self._of("offset"),
                lengths,
                checksums + 4 * block,
                np.full_like(paths, BLOCK_BYTES),
                np.zeros_like(paths),
                np.full_like(paths, self._ids),
                self._of("first"),
                self._rows,
                self._columns.ctypes.data + columns[0].nbytes * np.arange(len(paths)),
                np.full_like(paths, columns.shape[1]),
                self._of("last") - self._of("first"),
                self._of("rows"),
                *self._segments(),
                *self._newest(),
            ],
            axis=1,
        )[kept]

    def _of(self, name: str) -> Numbers:
        found: Numbers = self._outline.chunks[name][self._at]
        return found

    def _of_table(self, numbers: Sequence[int]) -> Numbers:
        found: Numbers = np.array(numbers, dtype=np.int64)[self._table]
        return found

    def _places(self) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
        """Offset, width and target of each wanted column; how much to read; whether that is one range."""
        all_rows = self._of("rows")
        offset, stop = _padded(all_rows * self._ids), all_rows * self._ids
        is_one = np.ones(len(all_rows), dtype=bool)
        found: list[Numbers] = []
        for number, (width, is_wanted) in enumerate(zip(self._targets[0].widths, self._targets[0].wanted, strict=True)):
            if is_wanted:
                is_one &= offset - stop <= BLOCK_BYTES
                stop = offset + self._rows * width
                address = self._of_table([target.addresses[number] for target in self._targets])
                found.append(np.stack([offset, np.full_like(offset, width), address], axis=1))
            offset = offset + _padded(all_rows * width)
        lengths = np.minimum(stop // -BLOCK_BYTES * -BLOCK_BYTES, self._of("length"))
        columns = np.stack(found, axis=1) if found else np.zeros((len(all_rows), 0, 3), dtype=np.int64)
        return columns, lengths, is_one

    def _segments(self) -> list[Numbers]:
        """Addresses of where the segments of each chunk begin, and how many these are; all ids are one without any."""
        counts = self._of("segments")
        first = np.cumsum(self._outline.chunks["segments"])[self._at] - counts
        rows = self._outline.segments[:, 1].astype(np.int64)
        sums = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), rows]))
        own = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        starts = sums[own] - np.repeat(sums[first], counts)
        self._starts = np.concatenate([np.zeros(1, dtype=np.int64), starts])
        places = np.where(counts > 0, 1 + np.cumsum(counts) - counts, 0)
        return [_address(self._starts) + 8 * places, np.maximum(counts, 1)]

    def _newest(self) -> list[Numbers]:
        """The last fields: the newest generation of each row, for contested reads; the generation; where ids go."""
        contested = np.array([each.read.contested for each in self._work], dtype=bool)
        return [
            np.where(contested, self._of_table([target.newest for target in self._targets]), 0),
            self._of_table([target.newest_width for target in self._targets]),
            np.array([each.number for each in self._work]),
            np.array([0 if e.ids_out is None else e.ids_out.__array_interface__["data"][0] for e in self._work]),
        ]


class _Files:
    """Finds the files that bundles are, each once."""

    def __init__(self, reader: VerifiedReader) -> None:
        self._reader = reader
        self._found: dict[str, _File] = {}

    def of(self, outline: Outline, bundles: Numbers) -> tuple[list[_File], Numbers, Numbers, Numbers]:
        """Addresses of the file names of these bundles, 0 for none (as for number -1), and of their checksums, and how
        many these are. All stay valid as long as the files that come first.
        """
        used, which = np.unique(bundles, return_inverse=True)
        files = [self._file(outline.bundles[number]) if number >= 0 else _NO_FILE for number in used.tolist()]
        paths, checksums, blocks = np.array([file[:3] for file in files], dtype=np.int64).reshape(-1, 3).T
        return files, paths[which], checksums[which], blocks[which]

    def _file(self, bundle: BundleRef) -> _File:
        if (found := self._found.get(bundle.name)) is None:
            found = self._found[bundle.name] = self._look(bundle)
        return found

    def _look(self, bundle: BundleRef) -> _File:
        path = self._reader.path(bundle)
        if path is None:
            return _NO_FILE
        name = np.frombuffer(os.fsencode(path) + b"\0", dtype=np.uint8)
        directory = self._reader.directory(bundle)
        return _File(_address(name), _address(directory), len(directory), name, directory)


class _File(NamedTuple):
    path: int  # address of its name
    checksums: int  # address of its blocks'
    blocks: int
    name: NDArray[np.uint8] | None = None
    directory: Directory | None = None


_NO_FILE = _File(0, 0, 0)


def _address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _padded(lengths: Numbers) -> Numbers:
    return lengths // -ALIGNMENT * -ALIGNMENT


@cache
def _kernels() -> ModuleType | None:
    try:
        from holdfast.kernels import native
    except ImportError:
        return None
    return native if native.functions() is not None else None
