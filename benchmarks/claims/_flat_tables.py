"""The floor of a recovery of many tables: exactly the wanted rows of all of them, sorted, in one flat file.

As in ``_floor``, which is about one table: ``checksums | ids columns | ids columns | ...``, a CRC-32 for every block,
read and applied in pieces by a restore's own threads with a restore's own writer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.claims._floor import BlockRange, opened, pieces_of
from holdfast.checkpoint.read.crew import WORKERS, Crew, Task
from holdfast.checkpoint.restore.columns import Scratch
from holdfast.checkpoint.restore.tensors import ColumnWriter, Targets
from holdfast.format.bundle import blocks_of, checksums
from holdfast.format.dtypes import code_of

_CHECKSUM_BYTES = 4


class FlatTable(NamedTuple):
    """Some rows of a table, by id, ascending."""

    ids: NDArray[np.int64]
    columns: Mapping[str, Tensor]  # of these rows alone


class _Array(NamedTuple):
    """An array in the file: of ids, or of a column's rows."""

    offset: int  # behind the checksums
    length: int
    block: int  # its first


class _Table(NamedTuple):
    name: str
    rows: int
    ids: _Array
    columns: Mapping[str, _Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatTables:
    """A file that was written."""

    path: Path
    tables: Sequence[_Table]
    blocks: int

    @classmethod
    def write(cls, path: Path, tables: Mapping[str, FlatTable]) -> FlatTables:
        """Write these rows and make them durable."""
        found: list[_Table] = []
        bodies: list[memoryview] = []
        directory: list[int] = []
        for name, table in tables.items():
            placed = {}
            for key, array in {"": table.ids.astype("<i4"), **{k: v.numpy() for k, v in table.columns.items()}}.items():
                body = memoryview(np.ascontiguousarray(array).tobytes())
                placed[key] = _Array(sum(map(len, bodies)), len(body), len(directory))
                bodies.append(body)
                directory += checksums(body)
            found.append(_Table(name, len(table.ids), placed.pop(""), placed))
        with path.open("wb") as file:
            file.writelines((np.array(directory, dtype="<u4").tobytes(), *bodies))
            file.flush()
            os.fsync(file.fileno())
        return cls(path=path, tables=found, blocks=len(directory))

    @property
    def rows(self) -> int:
        """Of all tables."""
        return sum(table.rows for table in self.tables)

    def restore(self, targets: Mapping[str, Targets]) -> None:
        """Read, verify and write every row into its table."""
        ids = {table.name: np.empty(table.rows, dtype="<i4") for table in self.tables}
        with opened(self.path) as handle, Crew(WORKERS) as crew:
            crcs = os.pread(handle, _CHECKSUM_BYTES * self.blocks, 0)
            file = _File(handle, np.frombuffer(crcs, dtype="<u4"))
            crew.do(task for table in self.tables for task in file.reading(table.ids, ids[table.name]))
            crew.do(
                task
                for table in self.tables
                for name, array in table.columns.items()
                for task in file.applying(array, ids[table.name], targets[table.name][name])
            )


class _File:
    def __init__(self, handle: int, directory: NDArray[np.uint32]) -> None:
        self._handle = handle
        self._directory = directory
        self._scratch = Scratch()

    def reading(self, array: _Array, into: NDArray[np.int32]) -> Iterator[Task]:
        """Read ids."""
        blocks = self._blocks(array)
        return (partial(blocks.read, piece, into.view(np.uint8).data) for piece in pieces_of(array.length))

    def applying(self, array: _Array, ids: NDArray[np.int32], target: Tensor) -> Iterator[Task]:
        """Read the rows of a column and write them to their places."""
        if not len(ids):
            return iter(())
        writer = ColumnWriter(target, code_of(target.dtype), tuple(target.shape[1:]))
        width = array.length // len(ids)
        return (
            partial(self._apply, self._blocks(array), piece, ids[piece.start // width : piece.stop // width], writer)
            for piece in pieces_of(array.length)
        )

    def _blocks(self, array: _Array) -> BlockRange:
        offset = _CHECKSUM_BYTES * len(self._directory) + array.offset
        directory = self._directory[array.block : array.block + blocks_of(array.length)]
        return BlockRange(handle=self._handle, offset=offset, directory=directory)

    def _apply(self, blocks: BlockRange, piece: range, ids: NDArray[np.int32], writer: ColumnWriter) -> int:
        self._scratch.begin()
        memory = self._scratch(len(piece))
        blocks.read_into(piece, memory)
        writer.write(memory, len(ids), 0, ids.astype(np.int64), None)
        return len(piece)
