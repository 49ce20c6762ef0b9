"""Copies training state into frames: the only part of a save that the training loop waits for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.gpu_records import Encodable, RecordedRows, Window, encodable, frame_widths
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.frame_layout import frame_columns
from holdfast.checkpoint.wire.messages import STATE, FrameChunk
from holdfast.format.layout import IDS, chunk_bytes, ids_dtype, padded, rows_that_fit
from holdfast.kernels.rows import Gather, gather_rows

logger = logging.getLogger("holdfast")

_MIN_ROOM = 4096  # a frame with less room than this left is full
_PIECE_MIN = 8


class FrameSink(Protocol):
    """Where frames come from and go to: the agent, or a writer in this process."""

    def acquire_frame(self) -> int:
        """A free frame's index; waits for one."""
        ...

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        """Take a filled frame over."""
        ...


class _Copy(NamedTuple):
    """Bytes that will go from a live tensor into a frame."""

    target: Tensor
    source: Tensor


class _Frame(NamedTuple):
    """A frame that is laid out."""

    number: int
    used: int
    chunks: list[FrameChunk]


class FrameFiller:
    """Lays chunks out in frames, one frame after another, copies them and hands the frames over.

    ``frames_ahead`` frames are laid out before they are copied, in one go: every large copy empties the CPU's caches,
    and what Python does between two of them then takes several times as long (measured: 4 ms less of a 36 ms wait).
    The sink must have so many frames to give before it gets one back.
    """

    def __init__(self, sink: FrameSink, buffer: FrameBuffer, *, frames_ahead: int = 1) -> None:
        self._sink = sink
        self._buffer = buffer
        self._frames_ahead = frames_ahead
        self._copies: list[_Copy] = []
        self._gathers: list[Gather] = []
        self._complete: list[_Frame] = []
        self._frame: int | None = None
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._chunks: list[FrameChunk] = []
        self._pieces: list[tuple[int, int, int]] = []
        self._pieces_at = 0
        self._devices: set[torch.device] = set()
        self.copied_bytes = 0

    def add_table(self, table: TableCopy) -> None:
        """Add a table's rows, in as many chunks as frames need."""
        self._close_pieces()
        columns = encodable(table)
        done = 0
        while done < table.rows:
            rest = table.part(done, table.rows)
            added = self._add_encoded(rest, columns) if columns else self._add_plain(rest)
            done += added
            if done < table.rows:
                self._go_on(table, added)

    def add_state(self, index: int, tensor: Tensor) -> None:
        """Add a state tensor, in pieces where a frame ends inside it."""
        raw = bytes_of(tensor)
        done = 0
        while done < len(raw):
            room = self._room() // _PIECE_MIN * _PIECE_MIN
            if room < _PIECE_MIN:
                self.end_frame()
                continue
            if not self._pieces:
                self._pieces_at = self._used
            length = min(room, len(raw) - done)
            self._copies.append(_Copy(self._place(self._used, length), raw[done : done + length]))
            self._pieces.append((index, done, length))
            self._used += padded(length)
            self._note(tensor.device, length)
            done += length

    def flush(self) -> None:
        """Copy everything that was added and hand its frames over."""
        self.end_frame()
        self._hand_over()

    def end_frame(self) -> None:
        """What comes next goes into another frame."""
        self._close_pieces()
        if self._frame is None or not self._chunks:
            return
        self._complete.append(_Frame(self._frame, self._used, self._chunks))
        self._frame, self._used, self._chunks = None, 0, []
        if len(self._complete) >= self._frames_ahead:
            self._hand_over()

    def wait(self) -> None:
        """Until no device copies into a frame any more, which others may be given."""
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
        self._devices.clear()

    def _hand_over(self) -> None:
        for target, source in self._copies:
            target.copy_(source, non_blocking=True)
        self._copies.clear()
        gather_rows(self._gathers)
        self._gathers.clear()
        self.wait()
        for frame in self._complete:
            self._sink.submit_frame(frame.number, frame.used, frame.chunks)
        self._complete.clear()

    def _add_plain(self, table: TableCopy) -> int:
        """Add as many rows as fit in the frame, unencoded."""
        room = self._room()
        if room < _MIN_ROOM:
            return 0
        # 64-bit ids are assumed until the chunk's last id is known: a row or two less, never one too many
        rows = min(table.rows, rows_that_fit(table.columns, room, None if table.ids is None else "U64"))
        if rows:
            ((first, last),) = table.bounds([(0, rows)])
            self._add_chunk(table.part(0, rows), first, last, {})
        return rows

    def _add_encoded(self, table: TableCopy, columns: Encodable) -> int:
        """Add as many rows as fit the frame, these columns as records.

        No chunk has more rows than a frame could hold as they are: whoever decodes it needs that much memory.
        """
        room, ids = self._room(), None if table.ids is None else "U64"
        if room < _MIN_ROOM:
            return 0
        window = Window(table.part(0, min(table.rows, room // sum(frame_widths(table, columns)))), columns)
        spans = window.spans(room, rows_that_fit(table.columns, self._buffer.frame_bytes, ids))
        if not spans:
            return 0
        bounds = table.bounds([(span.start, span.stop) for span in spans])
        for span, (first, last), recorded in zip(spans, bounds, window.rows(spans), strict=True):
            self._add_chunk(table.part(span.start, span.stop), first, last, recorded)
        return spans[-1].stop

    def _add_chunk(self, table: TableCopy, first: int, last: int, recorded: Mapping[str, RecordedRows]) -> None:
        """Give all rows, from id ``first`` to id ``last``, a place in the frame."""
        stored = None if table.ids is None else ids_dtype(first, last)
        takes = {name: each.takes for name, each in recorded.items()}
        columns = {each.name: each for each in frame_columns(table.columns, table.rows, stored, takes)}
        targets = {name: self._place(self._used + each.offset, each.length) for name, each in columns.items()}
        if table.ids is not None:
            integer = torch.int32 if stored == "U32" else torch.int64  # the same bits as the unsigned type
            _copy_ids(targets[IDS].view(integer), table.ids, first)
        for spec, tensor in zip(table.columns, table.tensors, strict=True):
            self._note(tensor.device, columns[spec.name].length)
            if spec.name in recorded:
                recorded[spec.name].copy_into(targets, spec.name)
            else:
                target = targets[spec.name].view(tensor.dtype).view(columns[spec.name].shape)
                self._copy(target, tensor.detach(), table)
        length = chunk_bytes(tuple(columns.values()))
        self._chunks.append(
            FrameChunk(
                table=table.index,
                offset=self._used,
                length=length,
                rows=table.rows,
                first=first,
                last=last,
                ids=stored,
                recorded=dict(takes),
            )
        )
        self._used += length

    def _copy(self, target: Tensor, source: Tensor, table: TableCopy) -> None:
        """Copy a column's rows: later; from a GPU, which does so while the next ones are laid out, at once."""
        gather = None if table.ids is None else Gather(target, source, table.ids)
        if not source.is_cpu:
            gather_rows([gather]) if gather else target.copy_(source[table.range], non_blocking=True)
        elif gather:
            self._gathers.append(gather)
        else:
            self._copies.append(_Copy(target, source[table.range]))

    def _go_on(self, table: TableCopy, added: int) -> None:
        """Continue in another frame: the rest of this one would hold chunks of only a few rows."""
        if not added and not self._used:
            raise ValueError(
                f"a row of table {table.index} does not fit in a frame of {self._buffer.frame_bytes} bytes"
            )
        self.end_frame()

    def _room(self) -> int:
        if self._frame is None:
            self._frame = self._sink.acquire_frame()
            self._bytes = torch.frombuffer(self._buffer.frame(self._frame), dtype=torch.uint8)
        return self._buffer.frame_bytes - self._used

    def _place(self, offset: int, length: int) -> Tensor:
        """The bytes for a column; the padding behind it is cleared, since it would tell of older snapshots."""
        if padding := padded(length) - length:
            self._bytes[offset + length : offset + length + padding].zero_()
        return self._bytes[offset : offset + length]

    def _close_pieces(self) -> None:
        if self._pieces:
            length = self._used - self._pieces_at
            self._chunks.append(FrameChunk(table=STATE, offset=self._pieces_at, length=length, pieces=self._pieces))
            self._pieces = []

    def _note(self, device: torch.device, length: int) -> None:
        self.copied_bytes += length
        if device.type == "cuda":
            self._devices.add(device)


def _copy_ids(target: Tensor, ids: Tensor, first: int) -> None:
    if ids.device.type == "cpu":
        torch.sub(ids, first, out=target)  # in one pass: fresh memory for parts of it would cost more than the sum
    else:
        target.copy_((ids - first).to(target.dtype), non_blocking=True)


def bytes_of(tensor: Tensor) -> Tensor:
    """A state tensor as stored bytes, on its device."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def pin(buffer: FrameBuffer) -> None:
    """Lock the buffer's pages for the GPU, so that copies run at full bus speed and in parallel with the CPU."""
    address = torch.frombuffer(buffer.whole(), dtype=torch.uint8).data_ptr()
    code = torch.cuda.cudart().cudaHostRegister(address, buffer.frames * buffer.frame_bytes, 0)
    if int(code) != 0:
        logger.warning("CUDA could not pin the snapshot buffer (error %s): snapshots will take longer", code)


def unpin(buffer: FrameBuffer) -> None:
    """Undo pin, before the buffer is closed."""
    torch.cuda.cudart().cudaHostUnregister(torch.frombuffer(buffer.whole(), dtype=torch.uint8).data_ptr())
