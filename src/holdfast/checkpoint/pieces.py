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
from holdfast.format.bundle import BLOCK_BYTES, Directory, blocks_of
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import IDS
from holdfast.format.manifest import BundleRef

if TYPE_CHECKING:
    from holdfast.kernels.native import Piece

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
        kept: list[object] = []  # arrays whose addresses the pieces hold
        built = [(number, _piece(each, files, kernels, kept)) for number, each in enumerate(work)]
        pieces = [(number, piece) for number, piece in built if piece is not None]
        if not pieces:
            return done
        shared = kernels.Pieces([piece for _, piece in pieces], kernels.functions())
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

    @contextmanager
    def closing(self) -> Iterator[_Files]:
        """Give them back at the end."""
        try:
            yield self
        finally:
            for handle in self._handles.values():
                if handle is not None:
                    os.close(handle)

    def open(self, bundle: BundleRef) -> tuple[int, Directory] | None:
        """None where it is no file, or cannot be opened: whoever reads it in another way will tell why."""
        if bundle.name not in self._handles:
            self._handles[bundle.name] = self._opened(bundle)
        handle, directory = self._handles[bundle.name], self._reader.known_directory(bundle)
        return (handle, directory) if handle is not None and directory is not None else None

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


def _piece(work: Application, files: _Files, kernels: ModuleType, kept: list[object]) -> Piece | None:
    read, chunk = work.read, work.read.chunk
    ranges = read.ranges([column for column in read.columns if column.name == IDS or column.name in work.writers])
    if chunk.ids is None or len(ranges) != 1 or ranges[0][0] != 0 or not read.rows:
        return None
    places = _column_places(work)
    opened = files.open(read.bundle) if places is not None else None
    if opened is None or places is None:
        return None
    handle, directory = opened
    length = min(blocks_of(ranges[0][1]) * BLOCK_BYTES, chunk.place.length)
    if not 0 <= chunk.place.block <= len(directory) - blocks_of(length):
        return None
    kept += [places, directory]
    newest = work.newest if work.newest is not None and read.contested else None
    piece: Piece = kernels.Piece(
        handle=handle,
        offset=chunk.place.offset,
        length=length,
        checksums=directory.ctypes.data + 4 * chunk.place.block,
        block_bytes=BLOCK_BYTES,
        ids=0,
        ids_width=itemsize(chunk.ids),
        first=chunk.first,
        rows=read.rows,
        columns=places.ctypes.data,
        column_count=len(places),
        table_rows=read.part.spec.rows,
        newest=0 if newest is None else newest.ctypes.data,
        newest_width=1 if newest is None else newest.itemsize,
        number=work.number,
        ids_out=0 if work.ids_out is None else work.ids_out.ctypes.data,
    )
    return piece


def _column_places(work: Application) -> NDArray[np.int64] | None:
    """Offset, width and target of each column that is wanted; None where one cannot be written this way."""
    places = []
    for column in work.read.columns:
        if column.name in work.writers:
            scatter = work.writers[column.name].scatter
            width = column.length // column.shape[0]
            if scatter is None or scatter.width != width:
                return None
            places.append((column.offset, width, scatter.address))
    return np.array(places, dtype=np.int64) if places else None


@cache
def _kernels() -> ModuleType | None:
    try:
        from holdfast.kernels import native
    except ImportError:
        return None
    return native if native.functions() is not None else None
