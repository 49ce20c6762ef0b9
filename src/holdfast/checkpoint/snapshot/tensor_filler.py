"""Copies tensors into frames, from a CPU or a GPU."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.frame_filler import MIN_ROOM, FrameFiller, FrameSink
from holdfast.checkpoint.snapshot.gpu_records import Encodable, Window, encodable, frame_widths
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.format.layout import Column, rows_that_fit
from holdfast.kernels.rows import Copy, Gather, copy_tensors, gather_rows

logger = logging.getLogger("holdfast")


class TensorFiller(FrameFiller):
    """Rows on a GPU are encoded there first, where that is worth it."""

    def __init__(self, sink: FrameSink, buffer: FrameBuffer, *, frames_ahead: int = 1) -> None:
        super().__init__(sink, buffer, frames_ahead=frames_ahead)
        self._copies: list[Copy] = []
        self._gathers: list[Gather] = []
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._devices: set[torch.device] = set()

    def wait(self) -> None:
        """Until no device copies into a frame any more, which others may be given."""
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()

    def _open(self, memory: memoryview) -> None:
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)

    def _raw(self, tensor: Tensor) -> Tensor:
        return bytes_of(tensor)

    def _put_bytes(self, offset: int, raw: Tensor) -> None:
        self._note(raw)
        self._copies.append(Copy(self._bytes[offset : offset + len(raw)], raw))

    def _put_ids(self, column: Column, offset: int, ids: Tensor, first: int) -> None:
        integer = torch.int32 if column.dtype == "U32" else torch.int64  # the same bits as the unsigned type
        _copy_ids(self._at(column, offset).view(integer), ids, first)

    def _put_rows(self, column: Column, offset: int, source: Tensor, table: TableCopy) -> None:
        """Copy a column's rows: later; from a GPU, which does so while the next ones are laid out, at once."""
        self._note(source)
        target = self._at(column, offset).view(source.dtype).view(column.shape)
        if source.requires_grad:
            source = source.detach()
        gather = None if table.ids is None else Gather(target, source, table.ids)
        if not source.is_cpu:
            gather_rows([gather]) if gather else target.copy_(source[table.range], non_blocking=True)
        elif gather:
            self._gathers.append(gather)
        else:
            self._copies.append(Copy(target, source[table.range]))

    def _copy_all(self) -> None:
        copy_tensors(self._copies)
        self._copies.clear()
        gather_rows(self._gathers)
        self._gathers.clear()

    def _adder(self, table: TableCopy) -> Callable[[TableCopy], int]:
        columns = encodable(table)
        return partial(self._add_encoded, columns=columns) if columns else self._add_plain

    def _add_encoded(self, table: TableCopy, *, columns: Encodable) -> int:
        """Add as many rows as fit the frame, these columns as records.

        No chunk has more rows than a frame could hold as they are: whoever decodes it needs that much memory.
        """
        room, ids = self._room(), None if table.ids is None else "U64"
        if room < MIN_ROOM:
            return 0
        window = Window(table.part(0, min(table.rows, room // sum(frame_widths(table, columns)))), columns)
        spans = window.spans(room, rows_that_fit(table.columns, self._buffer.frame_bytes, ids))
        if not spans:
            return 0
        bounds = table.bounds([(span.start, span.stop) for span in spans])
        for span, (first, last), recorded in zip(spans, bounds, window.rows(spans), strict=True):
            at, part = self._used, table.part(span.start, span.stop)
            placed = self._add_chunk(part, first, last, {name: each.takes for name, each in recorded.items()})
            targets = {name: self._at(each, at + each.offset) for name, each in placed.items()}
            for spec, source in zip(part.columns, part.tensors, strict=True):
                if spec.name in recorded:
                    self._note(source)
                    recorded[spec.name].copy_into(targets, spec.name)
                else:
                    self._put_rows(placed[spec.name], at + placed[spec.name].offset, source, part)
        return spans[-1].stop

    def _at(self, column: Column, offset: int) -> Tensor:
        return self._bytes[offset : offset + column.length]

    def _note(self, tensor: Tensor) -> None:
        if tensor.is_cuda:
            self._devices.add(tensor.device)


def _copy_ids(target: Tensor, ids: Tensor, first: int) -> None:
    if ids.device.type == "cpu":
        torch.sub(ids, first, out=target)  # in one pass: fresh memory for parts of it would cost more than the sum
    else:
        target.copy_((ids - first).to(target.dtype), non_blocking=True)


def bytes_of(tensor: Tensor) -> Tensor:
    """A state tensor as stored bytes, on its device."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.contiguous().view(-1).view(torch.uint8)


def pin(buffer: FrameBuffer) -> None:
    """Lock the buffer's pages for the GPU, so that copies run at full bus speed and in parallel with the CPU."""
    address = torch.frombuffer(buffer.whole(), dtype=torch.uint8).data_ptr()
    code = torch.cuda.cudart().cudaHostRegister(address, buffer.frames * buffer.frame_bytes, 0)
    if int(code) != 0:
        logger.warning("CUDA could not pin the snapshot buffer (error %s): snapshots will take longer", code)


def unpin(buffer: FrameBuffer) -> None:
    """Undo pin, before the buffer is closed."""
    torch.cuda.cudart().cudaHostUnregister(torch.frombuffer(buffer.whole(), dtype=torch.uint8).data_ptr())
