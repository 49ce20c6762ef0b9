"""Copies tables and state into a buffer on their device, on the stream that training runs on: nothing here waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import Area, BoundLayout, StagedChunk, Tally
from holdfast.checkpoint.snapshot.gpu_records import Encodable
from holdfast.checkpoint.snapshot.side_streams import Copy, Mark, SideStreams
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.table_writer import TableWriter
from holdfast.kernels.devices import triton_works
from holdfast.kernels.row_patches import put_inside


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableStage:
    """A table, which of its columns are encoded where they are, and where its rows go."""

    copy: TableCopy
    columns: Encodable
    layout: BoundLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedTable:
    """A table whose rows lie in a device buffer; their tally is on its way."""

    index: int
    buffer: Tensor
    layout: BoundLayout
    origin: int
    start: int  # the first row of contiguous ones
    numbers: Tensor  # of the tally, in pinned memory

    def close(self) -> list[StagedChunk]:
        """Its chunks, once the tally has come. Raises RoomExceeded."""
        return self.layout.close(self._tally())

    def bytes(self, area: Area) -> Tensor:
        """Some of its bytes on the device."""
        return self.buffer[area.offset : area.offset + area.length]

    def _tally(self) -> Tally:
        chunks = self.layout.chunks
        numbers: list[int] = self.numbers.tolist()
        if self.layout.ids is None:
            rows, first, size = self.layout.bound, self.start, self.layout.chunk_rows
            firsts = [first + number * size for number in range(chunks)]
            lasts = [min(each + size, first + rows) - 1 for each in firsts]
        else:
            rows, *numbers = numbers
            firsts = [self.origin + each for each in numbers[:chunks]]
            lasts = [self.origin + each for each in numbers[chunks : 2 * chunks]]
            del numbers[: 2 * chunks]
        escapes = {name: numbers[at * chunks : (at + 1) * chunks] for at, name in enumerate(self.layout.records)}
        return Tally(rows=rows, firsts=firsts, lasts=lasts, escapes=escapes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedPart:
    """What was written into device buffers together."""

    tables: tuple[StagedTable, ...]
    tallied: tuple[Mark, ...]  # past once all tallies are in host memory
    state: Mapping[int, Tensor] = field(default_factory=dict)  # bytes of state tensors on their devices, by numbers
    left: Callable[[], None] = lambda: None  # to be called when the last copy out of the buffers is queued

    def is_tallied(self) -> bool:
        """Whether it is known how many rows there are."""
        return all(mark.is_past() for mark in self.tallied)

    def await_tally(self) -> None:
        """Until it is known."""
        for mark in self.tallied:
            mark.wait()


Write = Callable[[Sequence[TableStage]], Tensor]  # writes everything; returns the tallies of all tables


def stage_part(
    tables: Sequence[TableStage], buffer: Tensor, streams: SideStreams, write: Write | None = None
) -> StagedPart:
    """Queue the copies of tables' rows into a buffer, and of their tallies to the host. ``write``: see ``writer``."""
    staged, tallies = stage_tables(tables, buffer, streams, write or partial(_write, buffer, streams))
    streams.follow(buffer.device)
    streams.copy(buffer.device, tallies)
    return StagedPart(tables=tuple(staged), tallied=(streams.mark(buffer.device),))


def stage_tables(
    tables: Sequence[TableStage], buffer: Tensor, streams: SideStreams, write: Write
) -> tuple[list[StagedTable], list[Copy]]:
    """Queue the copies of tables' rows; also returns what has to be copied to the host for their tallies."""
    tables = [each for each in tables if each.layout.bound]
    if not tables:
        return [], []
    tally = write(tables)
    numbers = streams.host_numbers(len(tally))
    staged, at = [], 0
    for each in tables:
        length = each.layout.tally_numbers
        staged.append(
            StagedTable(
                index=each.copy.index,
                buffer=buffer,
                layout=each.layout,
                origin=each.copy.origin,
                start=each.copy.start,
                numbers=numbers[at : at + length],
            )
        )
        at += length
    return staged, [Copy(numbers, tally)] if at else []


def writer(buffer: Tensor, streams: SideStreams) -> Write:
    """What writes save after save, if each has left the buffer before the next."""
    if _is_fused(buffer):
        from holdfast.checkpoint.snapshot.fused_writer import FusedWriter

        return FusedWriter(buffer, streams).write
    return partial(_write, buffer, streams)


def warm_up(buffer: Tensor) -> None:
    """Compile or load what writes to such a buffer, so that no save waits for it."""
    if _is_fused(buffer):
        from holdfast.kernels.bounded_rows import gpu

        gpu.warm_up(buffer.device)
        rows = torch.zeros(1, 1, device=buffer.device)
        put_inside(rows, rows, torch.zeros(1, dtype=torch.int64, device=buffer.device), first=0)


def _is_fused(buffer: Tensor) -> bool:
    return buffer.is_cuda and triton_works()


def _write(buffer: Tensor, streams: SideStreams, tables: Sequence[TableStage]) -> Tensor:
    """Write everything; returns the tallies of all tables, one after another."""
    if _is_fused(buffer):
        from holdfast.checkpoint.snapshot.fused_writer import write_tables

        return write_tables(tables, buffer, streams)
    return torch.cat([TableWriter(each.copy, each.columns, each.layout, buffer).write() for each in tables])
