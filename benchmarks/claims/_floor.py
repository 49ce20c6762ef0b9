"""The floor of a recovery: exactly the wanted rows, sorted, in one flat file, read and applied as fast as we can.

``checksums | ids | rows``: a CRC-32 for every block of the ids and of the rows, as in a bundle. It is read in pieces,
by a restore's own threads, into their memory, and applied with a restore's own writer. Nothing is planned, merged or
skipped: a restore of the same rows can hardly be faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.read.crew import WORKERS, Crew
from holdfast.checkpoint.restore.columns import Scratch
from holdfast.checkpoint.restore.tensors import ColumnWriter
from holdfast.format.bundle import BLOCK_BYTES, Directory, blocks_of, checksums, verify_blocks
from holdfast.format.dtypes import code_of

_PIECE_BYTES = 16 * BLOCK_BYTES  # measured: smaller and larger ones take longer
_CHECKSUM_BYTES = _ID_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatFile:
    """Sorted rows of one table in a file; a block holds a whole number of them."""

    path: Path
    rows: int
    row_bytes: int

    @classmethod
    def write(cls, path: Path, ids: NDArray[np.int64], rows: Tensor) -> FlatFile:
        """Write rows and their ids, ascending, and make them durable."""
        parts = [memoryview(array.tobytes()) for array in (ids.astype("<i4"), rows.numpy())]
        directory = np.array([crc for part in parts for crc in checksums(part)], dtype="<u4")
        with path.open("wb") as file:
            file.writelines((directory.tobytes(), *parts))
            file.flush()
            os.fsync(file.fileno())
        return cls(path=path, rows=len(ids), row_bytes=rows.shape[1] * rows.itemsize)

    @property
    def size_bytes(self) -> int:
        """Bytes of ids and rows."""
        return self.rows * (_ID_BYTES + self.row_bytes)

    def restore(self, target: Tensor) -> None:
        """Read, verify and write every row into ``target``."""
        ids_bytes, rows_bytes = _ID_BYTES * self.rows, self.row_bytes * self.rows
        id_blocks = blocks_of(ids_bytes)
        crew = Crew(WORKERS)
        with opened(self.path) as handle:
            crcs = os.pread(handle, _CHECKSUM_BYTES * (id_blocks + blocks_of(rows_bytes)), 0)
            directory = np.frombuffer(crcs, dtype="<u4")
            part = BlockRange(handle=handle, offset=len(crcs), directory=directory[:id_blocks])
            ids = np.empty(self.rows, dtype="<i4")
            crew.do(partial(part.read, piece, ids.view(np.uint8).data) for piece in pieces_of(ids_bytes))
            part = BlockRange(handle=handle, offset=len(crcs) + ids_bytes, directory=directory[id_blocks:])
            applier = _Applier(part, ids, target, self.row_bytes)
            crew.do(partial(applier.apply, piece) for piece in pieces_of(rows_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """The ids or the rows: bytes of the file from ``offset`` on, and their checksums."""

    handle: int
    offset: int
    directory: Directory

    def read(self, piece: range, whole: memoryview) -> int:
        """Read and verify a piece that begins with a block, into its place in the whole."""
        return self.read_into(piece, whole[piece.start : piece.stop])

    def read_into(self, piece: range, memory: memoryview) -> int:
        """Read and verify a piece that begins with a block."""
        if os.preadv(self.handle, [memory], self.offset + piece.start) != len(piece):
            raise OSError(f"the flat file ends before byte {piece.stop} of its rows or ids")
        verify_blocks(memory, piece.start // BLOCK_BYTES, self.directory, name="the flat file")
        return len(piece)


class _Applier:
    """Reads pieces of the rows and writes them to their places."""

    def __init__(self, rows: BlockRange, ids: NDArray[np.int32], target: Tensor, row_bytes: int) -> None:
        self._rows = rows
        self._ids = ids
        self._row_bytes = row_bytes
        self._writer = ColumnWriter(target, code_of(target.dtype), tuple(target.shape[1:]))
        self._scratch = Scratch()

    def apply(self, piece: range) -> int:
        """The rows in these bytes."""
        self._scratch.begin()
        memory = self._scratch(len(piece))
        self._rows.read_into(piece, memory)
        ids = self._ids[piece.start // self._row_bytes : piece.stop // self._row_bytes].astype(np.int64)
        self._writer.write(memory, len(ids), 0, ids, None)
        return len(piece)


def pieces_of(length: int) -> Iterator[range]:
    """So many bytes in pieces that threads take one by one; each begins with a block."""
    for start in range(0, length, _PIECE_BYTES):
        yield range(start, min(start + _PIECE_BYTES, length))


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A file's handle."""
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
