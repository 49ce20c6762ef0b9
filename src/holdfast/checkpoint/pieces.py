"""Hands planned reads over to threads that need no GIL, where the store has files and the tensors are plain memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.columns import ColumnWriter, Ids
from holdfast.checkpoint.crew import Crew
from holdfast.checkpoint.plan import Read
from holdfast.checkpoint.read import VerifiedReader
from holdfast.format.bundle import BLOCK_BYTES, blocks_of
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import IDS
from holdfast.format.manifest import BundleRef

if TYPE_CHECKING:
    from holdfast.kernels.native import Column, Piece

_OPEN_FILES = 256  # at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Records to read and where to write them; of contested ones those that no later generation replaces."""

    read: Read
    number: int
    writers: Mapping[str, ColumnWriter]
    newest: NDArray[np.unsignedinteger] | None = None
    ids_out: Ids | None = None  # where their row ids shall go, too


def apply_pieces(reader: VerifiedReader, crew: Crew, work: Sequence[Application]) -> list[bool]:
    """Do what can be done this way; of each whether it is done. The rest, for whatever reason, needs another way."""
    kernels = _kernels()
    if kernels is None:
        return [False] * len(work)
    done: list[bool] = []
    for start in range(0, len(work), _OPEN_FILES):
        done += _apply(reader, crew, work[start : start + _OPEN_FILES], kernels)
    return done


def _apply(reader: VerifiedReader, crew: Crew, work: Sequence[Application], kernels: ModuleType) -> list[bool]:
    done = [False] * len(work)
    with _Files(reader).closing() as files:
        columns: list[Column] = []
        built = [(number, _piece(each, files, kernels, columns)) for number, each in enumerate(work)]
        pieces = [(number, piece) for number, piece in built if piece is not None]
        if not pieces:
            return done
        shared = kernels.Pieces([piece for _, piece in pieces], columns, kernels.functions())
        crew.together(lambda: shared.work(np.empty(shared.memory_bytes, dtype=np.uint8)), limit=len(pieces))
        undone = set(shared.undone().tolist())
    for position, (number, _) in enumerate(pieces):
        done[number] = position not in undone
    return done


class _Files:
    """Open files of bundles, by name, with their verified checksums."""

    def __init__(self, reader: VerifiedReader) -> None:
        self._reader = reader
        self._handles: dict[str, int | None] = {}
        self._checksums: dict[str, tuple[int, int]] = {}  # where they are, and how many

    @contextmanager
    def closing(self) -> Iterator[_Files]:
        """Give them back at the end."""
        try:
            yield self
        finally:
            for handle in self._handles.values():
                if handle is not None:
                    os.close(handle)

    def open(self, bundle: BundleRef) -> int | None:
        """None where it is no file, or cannot be opened: whoever reads it in another way will tell why."""
        if bundle.name not in self._handles:
            self._handles[bundle.name] = self._opened(bundle)
        return self._handles[bundle.name]

    def checksums(self, bundle: BundleRef, block: int, blocks: int) -> int | None:
        """The address of the checksums of an open bundle's blocks; None if it does not have so many."""
        if bundle.name not in self._checksums:
            directory = self._reader.directory(bundle)
            self._checksums[bundle.name] = int(directory.ctypes.data), len(directory)
        address, count = self._checksums[bundle.name]
        return address + 4 * block if 0 <= block <= count - blocks else None

    def _opened(self, bundle: BundleRef) -> int | None:
        path = self._reader.path(bundle)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else None
        except OSError:
            return None
        if handle is not None and self._reader.known_directory(bundle) is None:
            try:
                self._reader.learn(bundle, memoryview(os.pread(handle, bundle.head_bytes, 0)))
            except BaseException:
                os.close(handle)
                raise
        return handle


def _piece(work: Application, files: _Files, kernels: ModuleType, columns: list[Column]) -> Piece | None:
    """What the kernel takes, with its columns added to ``columns``; None where it cannot do it."""
    read, chunk = work.read, work.read.chunk
    if read.codecs is not None:
        return None
    ranges = read.ranges([column for column in read.columns if column.name == IDS or column.name in work.writers])
    if chunk.ids is None or len(ranges) != 1 or ranges[0][0] != 0 or not read.rows:
        return None
    own = _columns(work, kernels)
    handle = files.open(read.bundle) if own else None
    length = min(blocks_of(ranges[0][1]) * BLOCK_BYTES, chunk.place.length)
    checksums = files.checksums(read.bundle, chunk.place.block, blocks_of(length)) if handle is not None else None
    if handle is None or checksums is None:
        return None
    newest = work.newest if work.newest is not None and read.contested else None
    piece: Piece = kernels.Piece(
        handle=handle,
        offset=chunk.place.offset,
        length=length,
        checksums=checksums,
        block_bytes=BLOCK_BYTES,
        ids=0,
        ids_width=itemsize(chunk.ids),
        first=chunk.first,
        rows=read.rows,
        columns=len(columns),
        column_count=len(own),
        table_rows=read.part.spec.rows,
        newest=0 if newest is None else newest.ctypes.data,
        newest_width=1 if newest is None else newest.itemsize,
        number=work.number,
        ids_out=0 if work.ids_out is None else work.ids_out.ctypes.data,
    )
    columns += own
    return piece


def _columns(work: Application, kernels: ModuleType) -> list[Column]:
    """Each column that is wanted; none where one of them cannot be written this way."""
    found: list[Column] = []
    for column in work.read.columns:
        if column.name in work.writers:
            scatter = work.writers[column.name].scatter
            width = column.length // column.shape[0]
            if scatter is None or scatter.width != width:
                return []
            found.append(kernels.Column(column.offset, width, scatter.address))
    return found


@cache
def _kernels() -> ModuleType | None:
    try:
        from holdfast.kernels import native
    except ImportError:
        return None
    return native if native.functions() is not None else None
