"""Rows that are encoded on their GPU before they are copied, so that a fraction of their bytes passes the link."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.checkpoint.framing import (
    Recorded,
    escapes_in_frame,
    frame_columns,
    sample_in_frame,
    sample_positions,
    sample_rows,
)
from holdfast.checkpoint.table_copy import TableCopy
from holdfast.codec.chunk import dim_of
from holdfast.codec.quantized import Quantized
from holdfast.format.layout import chunk_bytes, row_bytes
from holdfast.format.rows import id_bytes
from holdfast.kernels.quantize import tensors
from holdfast.types import ColumnSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodableColumn:
    """A column whose rows are encoded where they are."""

    spec: ColumnSpec
    tensor: Tensor
    codec: Quantized
    sampled: bool  # whether what the records lose is to be measured

    @property
    def record_bytes(self) -> int:
        """Of a row."""
        return self.codec.bytes_per_row(dim_of(self.spec), self.spec.dtype)

    def records(self, table: TableCopy) -> Tensor:
        """Of the rows that are to be copied."""
        source = self.tensor[table.range] if table.ids is None else self.tensor
        return tensors.encode(source, self.codec.scheme, table.ids)

    def values(self, table: TableCopy, numbers: Tensor) -> Tensor:
        """Rows as they are, by their numbers among those that are to be copied."""
        numbers = numbers.to(self.tensor.device, non_blocking=True)
        ids = numbers + table.range.start if table.ids is None else table.ids[numbers]
        return self.tensor.index_select(0, ids)


Encodable = Mapping[str, EncodableColumn]  # by the column's name


def encodable(table: TableCopy) -> Encodable:
    """The columns for which that is possible and worth it."""
    found: dict[str, EncodableColumn] = {}
    for spec, tensor in zip(table.columns, table.tensors, strict=True):
        codec = table.codecs.get(spec.name)
        if isinstance(codec, Quantized) and not codec.is_exact(dim_of(spec), spec.dtype):
            own = EncodableColumn(spec=spec, tensor=tensor.detach(), codec=codec, sampled=spec is table.columns[0])
            found |= {spec.name: own} if tensors.is_cheap(own.tensor, codec.scheme) else {}
    return found


def frame_row_bytes(table: TableCopy, columns: Encodable) -> int:
    """What a row takes in a frame, at least, if these columns are copied as records."""
    plain = [each for each in table.columns if each.name not in columns]
    records = sum(each.record_bytes for each in columns.values())
    return row_bytes(plain) + records + id_bytes(None if table.ids is None else "U64")


class RecordedRows(NamedTuple):
    """A column of a chunk: its records, and which of its rows go with them as they are."""

    takes: Recorded
    records: Tensor
    escapes: Tensor
    sample: Tensor

    def copy_into(self, targets: Mapping[str, Tensor], name: str) -> None:
        """Copy all of it to the column's places in a frame; from a GPU, this is only queued."""
        for place, source in (
            (name, self.records),
            (escapes_in_frame(name), self.escapes),
            (sample_in_frame(name), self.sample),
        ):
            if source.numel():
                targets[place].copy_(source.reshape(-1).view(torch.uint8), non_blocking=True)


class Span(NamedTuple):
    """Some rows of a window that will be one chunk."""

    start: int
    stop: int
    takes: Mapping[str, Recorded]


class Window:
    """Rows that are encoded and not yet copied. Waits for the device once, to learn which rows no record can hold."""

    def __init__(self, table: TableCopy, columns: Encodable) -> None:
        self._table = table
        self._columns = columns
        self._records = {name: each.records(table) for name, each in columns.items()}
        self._escaped = {name: tensors.escaped(records) for name, records in self._records.items()}
        self._escaped_at: dict[str, list[int]] = {name: each.tolist() for name, each in self._escaped.items()}

    def spans(self, room: int, most_rows: int) -> list[Span]:
        """The chunks, each of ``most_rows`` at most, that fit ``room`` bytes: from the first row on, maybe not all."""
        spans: list[Span] = []
        at = 0
        while at < self._table.rows:
            rows = self._rows_that_fit(at, min(most_rows, self._table.rows - at), room)
            if not rows:
                break
            spans.append(self._span(at, at + rows))
            room -= self._bytes(at, at + rows)
            at += rows
        return spans

    def rows(self, span: Span) -> dict[str, RecordedRows]:
        """The columns of a chunk."""
        return {name: self._column(name, span) for name in self._columns}

    def _column(self, name: str, span: Span) -> RecordedRows:
        own, takes = self._columns[name], span.takes[name]
        low, high = self._escapes_in(name, span.start, span.stop)
        sample = torch.from_numpy(sample_positions(span.stop - span.start, takes.sample)) + span.start
        return RecordedRows(
            takes=takes,
            records=self._records[name][span.start : span.stop],
            escapes=own.values(self._table, self._escaped[name][low:high]),
            sample=own.values(self._table, sample),
        )

    def _rows_that_fit(self, at: int, most: int, room: int) -> int:
        if self._bytes(at, at + most) <= room:
            return most
        return bisect_right(range(1, most + 1), room, key=lambda rows: self._bytes(at, at + rows))

    def _bytes(self, start: int, stop: int) -> int:
        ids = None if self._table.ids is None else "U64"  # until the chunk's last id is known: never too few
        return chunk_bytes(frame_columns(self._table.columns, stop - start, ids, self._span(start, stop).takes))

    def _span(self, start: int, stop: int) -> Span:
        takes = {}
        for name, own in self._columns.items():
            low, high = self._escapes_in(name, start, stop)
            takes[name] = Recorded(own.record_bytes, high - low, sample_rows(stop - start) if own.sampled else 0)
        return Span(start, stop, takes)

    def _escapes_in(self, name: str, start: int, stop: int) -> tuple[int, int]:
        """The numbers of the first escape among these rows, and of the first one behind them."""
        at = self._escaped_at[name]
        return bisect_left(at, start), bisect_left(at, stop)
