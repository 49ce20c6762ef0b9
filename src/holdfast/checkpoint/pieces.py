"""Hands planned reads over to threads that need no GIL, where the store has files and the tensors are plain memory.

Reads are many and small, so what the threads need of them is computed for all that are alike at once, in columns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.columns import ColumnWriter, Ids
from holdfast.checkpoint.crew import Crew
from holdfast.checkpoint.plan import Read
from holdfast.checkpoint.read import VerifiedReader
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import ALIGNMENT, row_bytes
from holdfast.format.manifest import EXACT, BundleRef
from holdfast.types import ColumnSpec

Numbers = NDArray[np.int64]
_ID_KINDS = ("U32", "U64")


class Application(NamedTuple):
    """Records to read and where to write them; of contested ones those that no later generation replaces.

    Without writers their ids alone are read.
    """

    read: Read
    number: int
    writers: Mapping[str, ColumnWriter]
    newest: NDArray[np.unsignedinteger] | None = None
    ids_out: Ids | None = None  # where their row ids shall go, too


class Pieces:
    """What can be done this way of a list of applications. The rest, for whatever reason, needs another way."""

    def __init__(self, reader: VerifiedReader, work: Sequence[Application]) -> None:
        kernels = _kernels()
        built = [_Alike(reader, group) for group in _groups(work)] if kernels is not None else []
        self._kept = built, work  # what addresses point into
        positions = np.concatenate([np.zeros(0, dtype=np.int64), *(each.positions for each in built)])
        order = np.argsort(positions, kind="stable")
        self._positions = positions[order]  # in the list, of each piece
        self._shared = None
        if kernels is not None and len(positions):
            pieces = np.concatenate([each.pieces for each in built])[order]
            self._shared = kernels.Pieces(pieces, kernels.functions())

    def apply(self, crew: Crew, start: int, stop: int) -> list[bool]:
        """Do the applications ``start .. stop``; of each whether it is done."""
        done = np.zeros(stop - start, dtype=bool)
        low, high = np.searchsorted(self._positions, [start, stop]).tolist()
        if self._shared is not None and high > low:
            shared = self._shared
            shared.choose(low, high)
            crew.together(lambda: shared.work(np.empty(shared.memory_bytes, dtype=np.uint8)), limit=high - low)
            done[self._positions[low:high] - start] = shared.done(low, high)
        found: list[bool] = done.tolist()
        return found


def apply_pieces(reader: VerifiedReader, crew: Crew, work: Sequence[Application]) -> list[bool]:
    """Do what can be done this way; of each whether it is done."""
    return Pieces(reader, work).apply(crew, 0, len(work))


class _Group(NamedTuple):
    """Applications of one table to chunks of one outline that have their form in common."""

    positions: list[int]
    work: list[Application]


def _groups(work: Sequence[Application]) -> list[_Group]:
    groups: dict[tuple[int, int, int], _Group] = {}
    forms: dict[int, list[int]] = {}  # by outline: the form of each chunk
    for position, each in enumerate(work):
        outline = each.read.outline
        of_chunk = forms.get(id(outline))
        if of_chunk is None:
            of_chunk = forms[id(outline)] = outline.chunks["form"].tolist()
        key = id(outline), of_chunk[each.read.at], id(each.writers)
        group = groups.get(key)
        if group is None:
            group = groups[key] = _Group([], [])
        group.positions.append(position)
        group.work.append(each)
    return list(groups.values())


_FIELDS = 16  # of a piece


class _Alike:
    """The pieces of a group, and what their addresses point to."""

    def __init__(self, reader: VerifiedReader, group: _Group) -> None:
        read, writers = group.work[0].read, group.work[0].writers
        self._chunks = read.outline.chunks
        self._group = group
        self._at = np.array([each.read.at for each in group.work])
        self._rows = np.array([each.read.rows for each in group.work], dtype=np.int64)
        self._form = read.outline.forms[int(self._chunks["form"][read.at])]
        self._spec = read.part.spec
        self.positions = np.zeros(0, dtype=np.int64)
        self.pieces = np.zeros((0, _FIELDS), dtype=np.int64)
        if self._form.codec == EXACT and self._form.ids in _ID_KINDS and _fit(self._spec.columns, writers):
            self._build(reader, writers)

    def _build(self, reader: VerifiedReader, writers: Mapping[str, ColumnWriter]) -> None:
        columns, lengths, chosen = self._places(writers)
        chosen &= self._rows > 0
        paths, checksums, blocks = self._files(reader, chosen)
        block = self._of("block")
        chosen &= (paths != 0) & (block + lengths // -BLOCK_BYTES * -1 <= blocks)
        kept = np.flatnonzero(chosen)
        self.positions = np.array(self._group.positions, dtype=np.int64)[kept]
        self._columns = np.ascontiguousarray(columns)
        self.pieces = np.stack(
            [
                paths,
                self._of("offset"),
                lengths,
                checksums + 4 * block,
                np.full_like(paths, BLOCK_BYTES),
                np.zeros_like(paths),
                np.full_like(paths, itemsize(str(self._form.ids))),
                self._of("first"),
                self._rows,
                self._columns.ctypes.data + columns[0].nbytes * np.arange(len(paths)),
                np.full_like(paths, columns.shape[1]),
                np.full_like(paths, self._spec.rows),
                *self._newest(),
            ],
            axis=1,
        )[kept]

    def _of(self, name: str) -> Numbers:
        found: Numbers = self._chunks[name][self._at]
        return found

    def _places(self, writers: Mapping[str, ColumnWriter]) -> tuple[Numbers, Numbers, NDArray[np.bool_]]:
        """Offset, width and target of each wanted column; how much to read; whether that is one range."""
        all_rows, width = self._of("rows"), itemsize(str(self._form.ids))
        offset, stop = _padded(all_rows * width), self._rows * width
        is_one = np.ones(len(all_rows), dtype=bool)
        found: list[Numbers] = []
        for column in self._spec.columns:
            width = row_bytes([column])
            if column.name in writers:
                scatter = writers[column.name].scatter
                assert scatter is not None  # it fits
                is_one &= offset - stop <= BLOCK_BYTES
                stop = offset + self._rows * width
                found.append(np.stack(np.broadcast_arrays(offset, width, scatter.address), axis=1))
            offset = offset + _padded(all_rows * width)
        lengths = np.minimum(stop // -BLOCK_BYTES * -BLOCK_BYTES, self._of("length"))
        columns = np.stack(found, axis=1) if found else np.zeros((len(all_rows), 0, 3), dtype=np.int64)
        return columns, lengths, is_one

    def _files(self, reader: VerifiedReader, chosen: NDArray[np.bool_]) -> tuple[Numbers, Numbers, Numbers]:
        """Addresses of the name of each chunk's file, 0 for none, and of its checksums, and how many these are."""
        bundles = self._group.work[0].read.outline.bundles
        used, which = np.unique(np.where(chosen, self._of("bundle"), -1), return_inverse=True)
        found = [self._file(reader, bundles[number]) if number >= 0 else (b"", 0, 0) for number in used.tolist()]
        names = b"\0".join([name for name, _, _ in found]) + b"\0"
        self._names = np.frombuffer(names, dtype=np.uint8)
        starts = np.cumsum([0, *(len(name) + 1 for name, _, _ in found[:-1])])
        paths = np.where([bool(name) for name, _, _ in found], self._names.ctypes.data + starts, 0)
        checksums, counts = np.array([numbers for _, *numbers in found], dtype=np.int64).reshape(-1, 2).T
        return paths[which], checksums[which], counts[which]

    def _file(self, reader: VerifiedReader, bundle: BundleRef) -> tuple[bytes, int, int]:
        path = reader.path(bundle)
        if path is None:
            return b"", 0, 0
        directory = reader.directory(bundle)
        return os.fsencode(path), directory.__array_interface__["data"][0], len(directory)

    def _newest(self) -> list[Numbers]:
        """The last fields: the newest generation of each row, for contested reads; the generation; where ids go."""
        newest = self._group.work[0].newest
        address = 0 if newest is None else newest.ctypes.data
        contested = [each.read.contested for each in self._group.work]
        return [
            np.where(contested, address, 0),
            np.full(len(contested), 1 if newest is None else newest.itemsize),
            np.array([each.number for each in self._group.work]),
            np.array([0 if e.ids_out is None else e.ids_out.__array_interface__["data"][0] for e in self._group.work]),
        ]


def _fit(columns: Sequence[ColumnSpec], writers: Mapping[str, ColumnWriter]) -> bool:
    """Whether every wanted column can be written this way; where none is wanted, the ids alone are."""
    wanted = [(row_bytes([column]), writers[column.name].scatter) for column in columns if column.name in writers]
    return all(scatter is not None and scatter.width == width for width, scatter in wanted)


def _padded(lengths: Numbers) -> Numbers:
    return lengths // -ALIGNMENT * -ALIGNMENT


@cache
def _kernels() -> ModuleType | None:
    try:
        from holdfast.kernels import native
    except ImportError:
        return None
    return native if native.functions() is not None else None
