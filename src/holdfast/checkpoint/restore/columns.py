"""Reads columns of chunks, and says what it takes to write them to where they belong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.read.chunk_ids import checked_ids
from holdfast.checkpoint.read.chunk_reads import Read, prefix_bytes
from holdfast.checkpoint.read.fetcher import ChunkSource, Memory
from holdfast.codec import Difference
from holdfast.codec.base import Rows
from holdfast.codec.chunk import decode_column, escapes_name
from holdfast.format.layout import ALIGNMENT, IDS, Column
from holdfast.kernels.row_scatter import RowScatter

Ids = NDArray[np.int64]


class ColumnTarget(Protocol):
    """Where the rows of a table's column go, or those of a range of the table. Several threads write at once."""

    @property
    def scatter(self) -> RowScatter | None:
        """Writes rows by id without the GIL, where rows are stored as the target has them."""
        ...

    def write(self, data: memoryview, rows: int, first: int, ids: Ids | None, chosen: NDArray[np.bool_] | None) -> None:
        """Write rows ``first ..`` or rows ``ids``, of these the chosen ones; not those that it has no place for."""
        ...

    def held(self, ids: Ids) -> Rows | None:
        """What it holds now of these rows, as they were stored; None where it keeps them differently.

        Anything for rows that it has no place for.
        """
        ...


class Scratch(threading.local):
    """Memory of each thread to read into, used again for every read: fresh memory costs more than the reading."""

    def __init__(self) -> None:
        self._memory = np.empty(0, dtype=np.uint8)
        self._used = 0

    def begin(self) -> None:
        """Nobody needs what was read so far."""
        self._used = 0

    def __call__(self, length: int) -> memoryview:
        if self._used + length > len(self._memory):
            self._memory = np.empty(length + length // 4, dtype=np.uint8)
            self._used = 0
        start = self._used
        self._used += -(-length // ALIGNMENT) * ALIGNMENT
        return self._memory[start : start + length].data


def _wanted(read: Read, names: Collection[str]) -> list[Column]:
    """These columns, and what they cannot hold."""
    wanted = names if read.codecs is None else {*names, *map(escapes_name, names)}
    return [column for column in read.columns if column.name in wanted]


def wanted_ranges(read: Read, names: Collection[str]) -> list[tuple[int, int]]:
    """The ranges of a chunk that ``read_columns`` reads for these columns."""
    return read.ranges(_wanted(read, names))


def read_columns(
    source: ChunkSource, read: Read, names: Collection[str], memory: Memory | None = None
) -> dict[str, memoryview]:
    """The bytes of these of a chunk's columns, as far as they are planned, as they are stored; see decode_columns."""
    columns = _wanted(read, names)
    found: dict[str, memoryview] = {}
    for start, stop in read.ranges(columns):
        data = source.chunk(read.bundle, read.chunk.place, start, stop, memory=memory)
        for column in columns:
            if start <= column.offset < stop:
                begin = column.offset - start
                found[column.name] = data[begin : begin + prefix_bytes(column, read.rows)]
    return {column.name: found.get(column.name, memoryview(b"")) for column in columns}


def row_ids(read: Read, columns: Mapping[str, memoryview]) -> Ids | None:
    """The ids in a chunk's columns; None for a contiguous one. Ids that are not the chunk's rows are refused."""
    chunk = read.chunk
    if chunk.ids is None:
        return None
    return checked_ids(chunk, columns[IDS], name=read.bundle.name)[: read.rows]


def decode_columns(
    read: Read, columns: Mapping[str, memoryview], baseline_rows: Callable[[], Rows]
) -> Mapping[str, memoryview]:
    """The values of columns as they were stored, ids aside; ``baseline_rows`` are asked for only if they are needed."""
    codecs = read.codecs
    if codecs is None:
        return columns
    decoded: dict[str, memoryview] = {}
    for spec in read.part.spec.columns:
        if spec.name in columns:
            codec, escapes = codecs[spec.name], columns.get(escapes_name(spec.name), memoryview(b""))
            beside = baseline_rows() if isinstance(codec, Difference) else None
            found = decode_column(spec, codec, columns[spec.name], escapes, read.rows, beside, name=read.bundle.name)
            decoded[spec.name] = found.data
    return decoded
