"""Reads columns of chunks into live tensors, without an intermediate copy if possible."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.read.chunk_ids import checked_ids
from holdfast.checkpoint.read.chunk_reads import Read, prefix_bytes
from holdfast.checkpoint.read.fetcher import ChunkSource, Memory
from holdfast.codec import Difference
from holdfast.codec.base import Rows
from holdfast.codec.chunk import decode_column, escapes_name
from holdfast.format.dtypes import torch_dtype
from holdfast.format.layout import ALIGNMENT, IDS, Column
from holdfast.kernels.rows import RowScatter

Ids = NDArray[np.int64]


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


def as_tensor(data: memoryview, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Bytes as a tensor, without a copy where the buffer can be written to."""
    kind = torch_dtype(dtype)
    if not len(data):
        return torch.empty(shape, dtype=kind)
    buffer = bytearray(data) if data.readonly else data
    return torch.frombuffer(buffer, dtype=kind).view(shape)


class ColumnWriter:
    """Writes rows into a table's column, by range or by id; converts type and device where they differ."""

    def __init__(self, target: Tensor, dtype: str, row_shape: tuple[int, ...]) -> None:
        self._target = target
        self._dtype = dtype
        self._row_shape = row_shape
        self.scatter = RowScatter.into(target) if target.dtype == torch_dtype(dtype) else None

    def write(self, data: memoryview, rows: int, first: int, ids: Ids | None, chosen: NDArray[np.bool_] | None) -> None:
        """Rows ``first ..`` or rows ``ids``, of these the chosen ones."""
        if ids is not None and self.scatter is not None and len(data):
            self.scatter(data, ids, chosen)
            return
        tensor = as_tensor(data, self._dtype, (rows, *self._row_shape))
        if ids is None:
            self._target[first : first + rows].copy_(tensor)
            return
        where = torch.from_numpy(ids)
        if chosen is not None:
            mask = torch.from_numpy(chosen)
            tensor, where = tensor[mask], where[mask]
        tensor = tensor.to(device=self._target.device, dtype=self._target.dtype)
        self._target.index_copy_(0, where.to(self._target.device), tensor)
