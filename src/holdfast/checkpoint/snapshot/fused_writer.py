"""Writes the rows of all tables into a device buffer in a few launches, however many tables there are.

The same bytes and tallies as ``TableWriter``'s, as far as chunks are made of them. Only the encoding kernel, and the
copies of columns that are not encoded, are launched for each column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.device_stage import TableStage
from holdfast.checkpoint.snapshot.gpu_records import EncodableColumn
from holdfast.checkpoint.snapshot.side_streams import Queue, SideStreams
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.touched_rows import TouchedRows
from holdfast.checkpoint.wire.frame_layout import sample_in_frame
from holdfast.codec.chunk import escapes_name
from holdfast.format.layout import IDS
from holdfast.format.rows import id_bytes
from holdfast.kernels.bit_sets.arrays import set_bytes
from holdfast.kernels.bounded_rows import gpu
from holdfast.kernels.bounded_rows.descriptors import LINE, EncodedLine, ListedLine, lines_of
from holdfast.kernels.quantize import tensors

_NUMBER_BYTES = 8
_KNOWN_SETS = 16  # lines that are kept, some kilobytes each

_Sets = tuple[tuple[int, int, int], ...]


def write_tables(tables: Sequence[TableStage], buffer: Tensor, streams: SideStreams) -> Tensor:
    """Write everything; returns the tallies of all tables, one after another, in memory of their own."""
    return _Writer(tables, buffer, streams).write(tables)


class FusedWriter:
    """Writes save after save, each when the one before has left the buffer.

    As long as tables are laid out as before, only the addresses of their sets change: what kernels are told of them,
    views and scratch memory are kept, and their launches are recorded and queued in one call.
    """

    def __init__(self, buffer: Tensor, streams: SideStreams) -> None:
        self._buffer = buffer
        self._streams = streams
        self._last: _Writer | None = None

    def write(self, tables: Sequence[TableStage]) -> Tensor:
        """Write everything; returns the tallies of all tables, which the next call overwrites."""
        if self._last is None or not self._last.is_for(tables):
            self._last = None  # its memory is free for the next one
            self._last = _Writer(tables, self._buffer, self._streams)
        return self._last.write(tables, again=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Column:
    """An encoded column: where its counts and its escaped rows are noted."""

    own: EncodableColumn
    source: Tensor
    records: Tensor
    counts: int  # an address
    escaped: Tensor  # a set
    places: int  # an address


class _Table:
    """A table, and the scratch memory that belongs to it."""

    def __init__(self, stage: TableStage, buffer: Tensor, tallies: _Scratch, zeros: _Scratch, lists: _Scratch) -> None:
        layout = self.layout = stage.layout
        self.stage = stage
        self.copy = stage.copy
        self.sources = _addresses(stage.copy)
        at = tallies.skip(layout.tally_numbers)
        self.tally = tallies.address(at)
        self.ids = self._ids(lists)
        self.total = tallies.part(at, 1) if self.ids is not None else None  # None: contiguous rows, all of them
        self.start = stage.copy.range.start
        counts = self.tally + _NUMBER_BYTES * (layout.tally_numbers - layout.chunks * len(layout.records))
        set_numbers = set_bytes(layout.bound) // _NUMBER_BYTES
        self.columns = {
            name: _Column(
                own=own,
                source=own.tensor if self.ids is not None else own.tensor[stage.copy.range],
                records=self._area(buffer, name).view(layout.bound, own.record_bytes),
                counts=counts + _NUMBER_BYTES * layout.chunks * number,
                escaped=zeros.part(zeros.skip(set_numbers), set_numbers),
                places=lists.address(lists.skip(layout.escapes)),
            )
            for number, (name, own) in enumerate(stage.columns.items())
        }

    def is_for(self, stage: TableStage) -> bool:
        """Whether a table is laid out as this one, in the same memory, whichever of its rows are touched."""
        own, its = self.copy, stage.copy
        return (
            self.layout is stage.layout
            and self.stage.columns is stage.columns
            and own.ids is None
            and its.ids is None
            and (own.unlisted is None) == (its.unlisted is None)
            and (own.start, own.stop, own.origin) == (its.start, its.stop, its.origin)
            and self.sources == _addresses(its)
        )

    def sets(self) -> tuple[int, int, int]:
        """The addresses of the sets whose union is listed; 0: none."""
        rows = self.copy.unlisted
        sets = [each.data_ptr() for each in rows.touched.sets] if isinstance(rows, TouchedRows) else []
        first, second, third = (*sets, *(0,) * (3 - len(sets)))
        return first, second, third

    def listed_line(self, address: int) -> ListedLine:
        """``address`` is that of the device buffer."""
        assert self.ids is not None
        rows = self.copy.unlisted
        first, second, third = self.sets()
        return ListedLine(
            first_set=first,
            second_set=second,
            third_set=third,
            start=rows.start if isinstance(rows, TouchedRows) else 0,
            stop=rows.stop if isinstance(rows, TouchedRows) else 0,
            bound=self.layout.bound,
            ids=self.ids.data_ptr(),
            frame_ids=address + self.layout.areas[IDS].offset,
            id_bytes=id_bytes(self.layout.ids),
            chunk_rows=self.layout.chunk_rows,
            chunks=self.layout.chunks,
            tally=self.tally,
        )

    def encoded_line(self, name: str, column: _Column, address: int) -> EncodedLine:
        """``address`` is that of the device buffer."""
        layout, own = self.layout, column.own
        return EncodedLine(
            escaped=column.escaped.data_ptr(),
            bound=layout.bound,
            total=0 if self.total is None else self.tally,
            chunk_rows=layout.chunk_rows,
            chunks=layout.chunks,
            counts=column.counts,
            places=column.places,
            room=layout.escapes,
            ids=0 if self.ids is None else self.ids.data_ptr(),
            start=self.start,
            source=own.tensor.data_ptr(),
            words=own.tensor.shape[1],
            escape_rows=address + layout.areas[escapes_name(name)].offset,
            sample_rows=address + layout.areas[sample_in_frame(name)].offset,
            sample=layout.sample if own.sampled else 0,
        )

    def write_columns(self, buffer: Tensor) -> None:
        """Encode or copy all columns of the rows that are listed."""
        for spec, source in zip(self.copy.columns, self.copy.tensors, strict=True):
            column = self.columns.get(spec.name)
            if column is None:
                self._copy_rows(source.detach(), self._area(buffer, spec.name))
            else:
                tensors.encode_bounded(
                    column.source,
                    column.own.codec.scheme,
                    self.ids,
                    column.records,
                    total=self.total,
                    escaped=column.escaped,
                    base=column.own.base,
                )

    def _area(self, buffer: Tensor, name: str) -> Tensor:
        area = self.layout.areas[name]
        return buffer[area.offset : area.offset + area.length]

    def _copy_rows(self, source: Tensor, target: Tensor) -> None:
        target = target.view(source.dtype).view(self.layout.bound, *source.shape[1:])
        if self.ids is None:
            target.copy_(source[self.copy.range])
        else:
            torch.index_select(source, 0, self.ids, out=target)

    def _ids(self, lists: _Scratch) -> Tensor | None:
        if self.copy.unlisted is not None:
            return lists.part(lists.skip(self.layout.bound), self.layout.bound)
        return None if self.copy.ids is None else self.copy.ids.contiguous()


def _addresses(copy: TableCopy) -> list[int]:
    return [tensor.data_ptr() for tensor in copy.tensors]


class _Scratch:
    """Memory of one piece (int64), of which everybody takes a part. A tensor of it costs more than its address."""

    def __init__(self, memory: Tensor, used: int = 0) -> None:
        self._memory = memory
        self._start = memory.data_ptr()
        self._used = used

    def skip(self, numbers: int) -> int:
        """Take so many numbers; where they begin."""
        at, self._used = self._used, self._used + numbers
        return at

    def address(self, at: int) -> int:
        """Of a number."""
        return self._start + _NUMBER_BYTES * at

    def part(self, at: int, numbers: int) -> Tensor:
        """Some numbers."""
        return self._memory[at : at + numbers]


class _Writer:
    """Tables of a device, and memory to write them with.

    Scratch memory that begins with zeros holds the tallies first, which leave the device, and sets of escaped rows.
    Other scratch memory holds lists of ids and of escaped rows.
    """

    def __init__(self, tables: Sequence[TableStage], buffer: Tensor, streams: SideStreams) -> None:
        self._buffer = buffer
        self._streams = streams
        self._tally_numbers = sum(each.layout.tally_numbers for each in tables)
        self._zeros = torch.empty(_zeros_needed(tables), dtype=torch.int64, device=buffer.device)
        self._lists = torch.empty(_lists_needed(tables), dtype=torch.int64, device=buffer.device)
        tallies, zeros = _Scratch(self._zeros), _Scratch(self._zeros, self._tally_numbers)
        lists = _Scratch(self._lists)
        self._tables = [_Table(each, buffer, tallies, zeros, lists) for each in tables]
        address = buffer.data_ptr()
        self._listed = [each.listed_line(address) for each in self._tables if each.ids is not None]
        self._encoded = [
            each.encoded_line(name, column, address) for each in self._tables for name, column in each.columns.items()
        ]
        self._tally = self._zeros[: self._tally_numbers]
        # The lines, on the device, and as they were for other sets: a table has three, which take turns.
        self._there = torch.empty(
            (len(self._listed) + len(self._encoded)) * LINE, dtype=torch.int64, device=buffer.device
        )
        self._known: dict[_Sets, Tensor] = {}
        self._written: _Sets | None = None  # whose lines are there
        self._queue_again: Queue | None = None

    def is_for(self, tables: Sequence[TableStage]) -> bool:
        """Whether these can be written in the same way."""
        return len(tables) == len(self._tables) and all(map(_Table.is_for, self._tables, tables))

    def write(self, tables: Sequence[TableStage], *, again: bool = False) -> Tensor:
        """Write everything; returns the tallies. ``again``: the same will be written more often."""
        is_first = self._written is None
        for own, stage in zip(self._tables, tables, strict=True):
            own.copy = stage.copy
        self._write_lines()
        if is_first or not again:
            self._queue()
            return self._tally
        if self._queue_again is None:  # now everything is compiled that it needs
            self._queue_again = self._streams.recorded(self._buffer.device, self._queue)
        self._queue_again()
        return self._tally

    def _queue(self) -> None:
        self._zeros.zero_()
        gpu.list_rows(self._listed, self._there)
        for table in self._tables:
            table.write_columns(self._buffer)
        gpu.gather_unencoded(self._encoded, self._there[len(self._listed) * LINE :])

    def _write_lines(self) -> None:
        """Tell the device which sets to list; everything else in its lines stays."""
        sets = tuple(each.sets() for each in self._tables if each.ids is not None)
        if sets == self._written:
            return
        lines = self._known.get(sets)
        if lines is None:
            listed = [
                line._replace(first_set=first, second_set=second, third_set=third)
                for line, (first, second, third) in zip(self._listed, sets, strict=True)
            ]
            lines = self._streams.numbers_on(self._buffer.device, lines_of(listed) + lines_of(self._encoded))
            if len(self._known) >= _KNOWN_SETS:
                self._known.clear()
            self._known[sets] = lines
        self._there.copy_(lines)
        self._written = sets


def _zeros_needed(tables: Sequence[TableStage]) -> int:
    return sum(
        each.layout.tally_numbers + len(each.layout.records) * (set_bytes(each.layout.bound) // _NUMBER_BYTES)
        for each in tables
    )


def _lists_needed(tables: Sequence[TableStage]) -> int:
    return sum(
        (each.layout.bound if each.copy.unlisted is not None else 0) + len(each.layout.records) * each.layout.escapes
        for each in tables
    )
