"""Lays out in frames what lies in device buffers; the side streams copy it there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import StagedChunk
from holdfast.checkpoint.snapshot.device_stage import StagedTable
from holdfast.checkpoint.snapshot.frame_filler import Frame, FrameFiller
from holdfast.checkpoint.snapshot.side_streams import Copy, Mark, SideStreams
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.messages import FrameChunk
from holdfast.format.layout import Column, chunk_bytes


class PatientSink(Protocol):
    """A ``FrameSink`` that says whether it would have to wait."""

    @property
    def free_frames(self) -> int:
        """How many frames are available without waiting."""
        ...

    def acquire_frame(self) -> int:
        """A free frame's index; waits for one."""
        ...

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        """Take a filled frame over."""
        ...

    def return_frame(self, frame: int) -> None:
        """Take back a frame that will not be filled."""
        ...

    def release(self) -> None:
        """Let the agent have the frames that were submitted, for it to free them."""
        ...


class _Copying(NamedTuple):
    """Frames that side streams copy to."""

    marks: list[Mark]
    frames: list[Frame]


class StagedFiller(FrameFiller):
    """Hands a frame over once the side streams are past its copies, which ``submit`` finds out."""

    def __init__(self, sink: PatientSink, buffer: FrameBuffer, streams: SideStreams) -> None:
        super().__init__(sink, buffer)
        self._patient = sink
        self._streams = streams
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._devices: set[torch.device] = set()
        self._copying: deque[_Copying] = deque()

    @property
    def is_copying(self) -> bool:
        """Whether there are frames to submit."""
        return bool(self._copying)

    def add_chunk(self, table: StagedTable, chunk: StagedChunk) -> None:
        """Add a chunk of rows."""
        self._close_pieces()
        columns = [place.column for place in chunk.places]
        length = chunk_bytes(columns)
        if self._room() < length:
            self.end_frame()
            self._room()
        at, copies = self._used, []
        for column, source in chunk.places:
            offset = self._placed(at + column.offset, column.length)
            if column.length:
                copies.append(Copy(self._bytes[offset : offset + column.length], table.bytes(source)))
        self._copy(table.buffer.device, copies)
        self._note_chunk(
            FrameChunk(
                table=table.index,
                offset=at,
                length=length,
                rows=chunk.rows,
                first=chunk.first,
                last=chunk.last,
                ids=chunk.ids,
                recorded=dict(chunk.recorded),
            )
        )

    def submit(self, *, wait: bool = False) -> None:
        """Hand over the frames whose copies are done; ``wait``: all."""
        while self._copying and (wait or all(mark.is_past() for mark in self._copying[0].marks)):
            marks, frames = self._copying.popleft()
            for mark in marks:
                mark.wait()
            for frame in frames:
                self._patient.submit_frame(frame.number, frame.used, frame.chunks)

    def abandon(self) -> None:
        """Give every frame back, once nothing is copied to it any more."""
        self.end_frame()
        self.wait()
        for _, frames in self._copying:
            for frame in frames:
                self._patient.return_frame(frame.number)
        self._copying.clear()
        if self._frame is not None:
            self._patient.return_frame(self._frame)
            self._frame = None

    def wait(self) -> None:
        """Until no device copies into a frame any more."""
        for mark in [self._streams.mark(device) for device in self._devices]:
            mark.wait()

    def _acquire(self) -> int:
        if not self._patient.free_frames:
            self.submit(wait=True)  # else nobody would free one
        return super()._acquire()

    def _hand_over(self) -> None:
        if self._complete:
            marks = [self._streams.mark(device) for device in self._devices]
            self._copying.append(_Copying(marks, self._complete.copy()))
            self._complete.clear()

    def _open(self, memory: memoryview) -> None:
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)

    def _raw(self, tensor: Tensor) -> Tensor:
        return tensor

    def _put_bytes(self, offset: int, raw: Tensor) -> None:
        target = self._bytes[offset : offset + len(raw)]
        if self._streams.covers(raw):
            self._copy(raw.device, [Copy(target, raw)])
        else:
            target.copy_(raw)

    def _copy(self, device: torch.device, copies: Sequence[Copy]) -> None:
        self._devices.add(device)
        self._streams.copy(device, copies)

    def _put_ids(self, column: Column, offset: int, ids: Tensor, first: int) -> None:
        raise AssertionError("ids of staged rows lie in the device buffer")

    def _put_rows(self, column: Column, offset: int, source: Tensor, table: TableCopy) -> None:
        raise AssertionError("staged rows lie in the device buffer")

    def _copy_all(self) -> None:
        """Everything is queued as it is put."""
