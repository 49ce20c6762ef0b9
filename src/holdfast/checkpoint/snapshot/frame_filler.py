"""Lays training state out in frames: the copy into them is the only part of a save that the training loop waits for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.buffer import FrameBuffer
from holdfast.checkpoint.wire.frame_layout import Recorded, frame_columns
from holdfast.checkpoint.wire.messages import STATE, FrameChunk
from holdfast.format.layout import IDS, Column, chunk_bytes, ids_dtype, padded, rows_that_fit

MIN_ROOM = 4096  # a frame with less room than this left is full
_PIECE_MIN = 8


class FrameSink(Protocol):
    """Where frames come from and go to: the agent, or a writer in this process."""

    def acquire_frame(self) -> int:
        """A free frame's index; waits for one."""
        ...

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        """Take a filled frame over."""
        ...


class Frame(NamedTuple):
    """A frame that is laid out."""

    number: int
    used: int
    chunks: list[FrameChunk]


class FrameFiller(ABC):
    """Lays chunks out in frames, one frame after another, copies them and hands the frames over.

    ``frames_ahead`` frames are laid out before they are copied, in one go: every large copy empties the CPU's caches,
    and what Python does between two of them then takes several times as long (measured: 4 ms less of a 36 ms wait).
    The sink must have so many frames to give before it gets one back. How tensors are copied, and arrays, subclasses
    know.
    """

    def __init__(self, sink: FrameSink, buffer: FrameBuffer, *, frames_ahead: int = 1) -> None:
        self._sink = sink
        self._buffer = buffer
        self._frames_ahead = frames_ahead
        self._complete: list[Frame] = []
        self._frame: int | None = None
        self._memory = memoryview(b"")
        self._used = 0
        self._chunks: list[FrameChunk] = []
        self._pieces: list[tuple[int, int, int]] = []
        self._pieces_at = 0
        self.copied_bytes = 0

    # ---- what subclasses know ------------------------------------------------------------------------------------

    @abstractmethod
    def _open(self, memory: memoryview) -> None:
        """The frame to copy to from now on."""

    @abstractmethod
    def _raw(self, tensor: Any) -> Any:
        """A state tensor as bytes that can be cut."""

    @abstractmethod
    def _put_bytes(self, offset: int, raw: Any) -> None:
        """Copy a piece of a state tensor, at ``_copy_all`` if not now."""

    @abstractmethod
    def _put_ids(self, column: Column, offset: int, ids: Any, first: int) -> None:
        """Copy ids, counted from ``first``."""

    @abstractmethod
    def _put_rows(self, column: Column, offset: int, source: Any, table: TableCopy) -> None:
        """Copy a table's rows of one column, at ``_copy_all`` if not now."""

    @abstractmethod
    def _copy_all(self) -> None:
        """Copy what was put and is not copied yet."""

    def wait(self) -> None:  # noqa: B027 - only devices keep copying
        """Until no device copies into a frame any more, which others may be given."""

    def _adder(self, table: TableCopy) -> Callable[[TableCopy], int]:
        """Adds as many rows as fit in the frame; returns how many."""
        return self._add_plain

    # ---- layout --------------------------------------------------------------------------------------------------

    def add_table(self, table: TableCopy) -> None:
        """Add a table's rows, in as many chunks as frames need."""
        self._close_pieces()
        add, rows = self._adder(table), table.rows
        done = 0
        while done < rows:
            added = add(table if not done else table.part(done, rows))
            done += added
            if done < rows:
                self._go_on(table, added)

    def add_state(self, index: int, tensor: Any) -> None:
        """Add a state tensor, in pieces where a frame ends inside it."""
        raw = self._raw(tensor)
        done, size = 0, len(raw)
        while done < size:
            room = self._room() // _PIECE_MIN * _PIECE_MIN
            if room < _PIECE_MIN:
                self.end_frame()
                continue
            if not self._pieces:
                self._pieces_at = self._used
            length = min(room, size - done)
            self._put_bytes(self._placed(self._used, length), raw if length == size else raw[done : done + length])
            self._pieces.append((index, done, length))
            self._used += padded(length)
            self.copied_bytes += length
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
        self._complete.append(Frame(self._frame, self._used, self._chunks))
        self._frame, self._used, self._chunks = None, 0, []
        if len(self._complete) >= self._frames_ahead:
            self._hand_over()

    def _hand_over(self) -> None:
        self._copy_all()
        self.wait()
        for frame in self._complete:
            self._sink.submit_frame(frame.number, frame.used, frame.chunks)
        self._complete.clear()

    def _add_plain(self, table: TableCopy) -> int:
        """Add as many rows as fit in the frame, unencoded."""
        room = self._room()
        if room < MIN_ROOM:
            return 0
        # 64-bit ids are assumed until the chunk's last id is known: a row or two less, never one too many
        whole = table.rows
        rows = min(whole, rows_that_fit(table.columns, room, None if table.ids is None else "U64"))
        if rows:
            ((first, last),) = table.bounds([(0, rows)])
            at, part = self._used, table if rows == whole else table.part(0, rows)
            columns = self._add_chunk(part, first, last, {})
            for spec, source in zip(part.columns, part.tensors, strict=True):
                self._put_rows(columns[spec.name], at + columns[spec.name].offset, source, part)
        return rows

    def _add_chunk(self, table: TableCopy, first: int, last: int, takes: Mapping[str, Recorded]) -> dict[str, Column]:
        """Give all rows, from row ``first`` of the table to row ``last``, a place in the frame; copies their ids."""
        stored = None if table.ids is None else ids_dtype(first, last)
        rows = table.rows
        columns = {each.name: each for each in frame_columns(table.columns, rows, stored, takes)}
        lengths = {name: each.length for name, each in columns.items()}
        for name, each in columns.items():
            self._placed(self._used + each.offset, lengths[name])
        if table.ids is not None:
            self._put_ids(columns[IDS], self._used + columns[IDS].offset, table.ids, first - table.origin)
        length = chunk_bytes(tuple(columns.values()))
        self._note_chunk(
            FrameChunk(
                table=table.index,
                offset=self._used,
                length=length,
                rows=rows,
                first=first,
                last=last,
                ids=stored,
                recorded=dict(takes),
            )
        )
        self.copied_bytes += sum(lengths[spec.name] for spec in table.columns)
        return columns

    def _note_chunk(self, chunk: FrameChunk) -> None:
        """The frame holds this chunk at its end."""
        self._chunks.append(chunk)
        self._used += chunk.length

    def _go_on(self, table: TableCopy, added: int) -> None:
        """Continue in another frame: the rest of this one would hold chunks of only a few rows."""
        if not added and not self._used:
            raise ValueError(
                f"a row of table {table.index} does not fit in a frame of {self._buffer.frame_bytes} bytes"
            )
        self.end_frame()

    def _room(self) -> int:
        if self._frame is None:
            self._frame = self._acquire()
            self._memory = self._buffer.frame(self._frame)
            self._open(self._memory)
        return self._buffer.frame_bytes - self._used

    def _acquire(self) -> int:
        return self._sink.acquire_frame()

    def _placed(self, offset: int, length: int) -> int:
        """The place of a column; the padding behind it is cleared, since it would tell of older snapshots."""
        if padding := padded(length) - length:
            self._memory[offset + length : offset + length + padding] = bytes(padding)
        return offset

    def _close_pieces(self) -> None:
        if self._pieces:
            length = self._used - self._pieces_at
            self._chunks.append(FrameChunk(table=STATE, offset=self._pieces_at, length=length, pieces=self._pieces))
            self._pieces = []
