"""The floor of a recovery: exactly the wanted rows, sorted, in one flat file, read and applied as fast as we can.

``checksums | ids | rows``: a CRC-32 for every block of the ids and of the rows, as in a bundle. It is read on as many
threads as a restore uses, in pieces, into memory that each thread uses again, and applied with the restore's own
function. Nothing is planned, merged or skipped: a restore of the same rows can hardly be faster.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.restore import WORKERS, write_rows
from holdfast.format.bundle import BLOCK_BYTES, Directory, blocks_of, checksums, verify_blocks

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
        ids, rows_bytes = bytearray(_ID_BYTES * self.rows), self.row_bytes * self.rows
        id_blocks = blocks_of(len(ids))
        with _opened(self.path) as handle, ThreadPoolExecutor(WORKERS) as pool:
            crcs = os.pread(handle, _CHECKSUM_BYTES * (id_blocks + blocks_of(rows_bytes)), 0)
            directory = np.frombuffer(crcs, dtype="<u4")
            part = _Part(handle=handle, offset=len(crcs), directory=directory[:id_blocks])
            pieces = list(_pieces(len(ids)))
            views = [memoryview(ids)[piece.start : piece.stop] for piece in pieces]
            list(pool.map(part.read, pieces, views))
            part = _Part(handle=handle, offset=len(crcs) + len(ids), directory=directory[id_blocks:])
            applier = _Applier(part, np.frombuffer(ids, dtype="<i4"), target)
            list(pool.map(applier.apply, _pieces(rows_bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The ids or the rows: bytes of the file from ``offset`` on, and their checksums."""

    handle: int
    offset: int
    directory: Directory

    def read(self, piece: range, into: memoryview) -> None:
        """Read and verify bytes that begin with a block."""
        if os.preadv(self.handle, [into], self.offset + piece.start) != len(piece):
            raise OSError(f"the flat file ends before byte {piece.stop} of its rows or ids")
        verify_blocks(into, piece.start // BLOCK_BYTES, self.directory, name="the flat file")


class _Applier:
    """Reads pieces of the rows and writes them to their places, with one buffer per thread."""

    def __init__(self, rows: _Part, ids: NDArray[np.int32], target: Tensor) -> None:
        self._rows = rows
        self._ids = ids
        self._target = target
        self._memory = threading.local()

    def apply(self, piece: range) -> None:
        """The rows in these bytes."""
        target, row_bytes = self._target, self._target[0].nbytes
        view = self._buffer()[: len(piece)]
        self._rows.read(piece, view)
        ids = self._ids[piece.start // row_bytes : piece.stop // row_bytes].astype(np.int64)
        rows = torch.frombuffer(view, dtype=target.dtype).view(len(ids), *target.shape[1:])
        write_rows(target, rows, 0, torch.from_numpy(ids))

    def _buffer(self) -> memoryview:
        if not hasattr(self._memory, "buffer"):
            self._memory.buffer = bytearray(_PIECE_BYTES)
        return memoryview(self._memory.buffer)


def _pieces(length: int) -> Iterator[range]:
    for start in range(0, length, _PIECE_BYTES):
        yield range(start, min(start + _PIECE_BYTES, length))


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
