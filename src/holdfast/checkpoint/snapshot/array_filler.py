"""Copies NumPy arrays into frames. No torch here."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.snapshot.frame_filler import FrameFiller, FrameSink
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.format.host_values import HostTensor
from holdfast.format.layout import Column
from holdfast.format.rows import ID_TYPES

Array = NDArray[Any]


class _Copy(NamedTuple):
    """Rows that will go from a live array into a frame: all of the source, or those of these ids."""

    target: Array
    source: Array
    ids: NDArray[np.int64] | None = None


class ArrayFiller(FrameFiller):
    """For tables that are arrays, and state in the form without torch."""

    def __init__(self, sink: FrameSink, buffer: FrameBuffer, *, frames_ahead: int = 1) -> None:
        super().__init__(sink, buffer, frames_ahead=frames_ahead)
        self._copies: list[_Copy] = []
        self._bytes = np.empty(0, dtype=np.uint8)

    def _open(self, memory: memoryview) -> None:
        self._bytes = np.frombuffer(memory, dtype=np.uint8)

    def _raw(self, tensor: HostTensor) -> Array:
        return tensor.raw

    def _put_bytes(self, offset: int, raw: Array) -> None:
        self._copies.append(_Copy(self._bytes[offset : offset + len(raw)], raw))

    def _put_ids(self, column: Column, offset: int, ids: Array, first: int) -> None:
        target = self._bytes[offset : offset + column.length].view(ID_TYPES[column.dtype])
        np.subtract(ids, first, out=target, casting="unsafe")

    def _put_rows(self, column: Column, offset: int, source: Array, table: TableCopy) -> None:
        target = self._bytes[offset : offset + column.length].view(source.dtype).reshape(column.shape)
        if table.ids is None:
            self._copies.append(_Copy(target, source[table.range]))
        else:
            self._copies.append(_Copy(target, source, table.ids))

    def _copy_all(self) -> None:
        for target, source, ids in self._copies:
            if ids is None:
                np.copyto(target, source)
            else:
                np.take(source, ids, axis=0, out=target, mode="clip")  # "raise" would copy twice; marks are checked
        self._copies.clear()
