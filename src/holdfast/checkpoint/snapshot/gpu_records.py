"""Encodes rows on their GPU before copying them, so only a fraction of their bytes crosses the bus."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.frame_layout import (
    Recorded,
    sample_in_frame,
    sample_positions,
    sample_rows,
)
from holdfast.codec.chunk import dim_of, escapes_name
from holdfast.codec.quantized import Quantized
from holdfast.format.layout import padded, row_bytes
from holdfast.format.rows import id_bytes
from holdfast.kernels.quantize import tensors
from holdfast.kernels.quantize.baseline import BaselineRows
from holdfast.types import ColumnSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodableColumn:
    """A column whose rows are encoded where they are."""

    spec: ColumnSpec
    tensor: Tensor
    codec: Quantized
    record_bytes: int
    sampled: bool  # whether what the records lose is to be measured
    base: BaselineRows | None = None  # what rows are stored as differences from

    def warm_up(self) -> None:
        """Prepare for ``records``."""
        tensors.warm_up(self.tensor, self.codec.scheme, self.base)

    def records(self, table: TableCopy) -> Tensor:
        """Of the rows that are to be copied."""
        source = self.tensor[table.range] if table.ids is None else self.tensor
        return tensors.encode(source, self.codec.scheme, table.ids, base=self.base)

    def values(self, table: TableCopy, numbers: Tensor) -> Tensor:
        """Unencoded rows, by their numbers among those to be copied."""
        numbers = numbers.to(self.tensor.device, non_blocking=True)
        ids = numbers + table.range.start if table.ids is None else table.ids[numbers]
        return self.tensor.index_select(0, ids)


Encodable = Mapping[str, EncodableColumn]  # by the column's name


def encodable(table: TableCopy) -> Encodable:
    """The columns for which that is possible and worth it."""
    found: dict[str, EncodableColumn] = {}
    for spec, tensor in zip(table.columns, table.tensors, strict=True):
        difference = table.difference if spec is table.columns[0] else None
        codec = table.codecs.get(spec.name) if difference is None else difference.codec
        if not isinstance(codec, Quantized) or codec.is_exact(dim_of(spec), spec.dtype):
            continue
        if tensors.is_cheap(tensor, codec.scheme):
            found[spec.name] = EncodableColumn(
                spec=spec,
                tensor=tensor.detach(),
                codec=codec,
                record_bytes=codec.bytes_per_row(dim_of(spec), spec.dtype),
                sampled=spec is table.columns[0],
                base=None if difference is None else difference.base,
            )
    return found


def frame_widths(table: TableCopy, columns: Encodable) -> list[int]:
    """What a row's id and columns take in a frame, if these columns are copied as records; escapes come to that.

    Ids have 64 bits until a chunk's last id is known: never too few.
    """
    ids = id_bytes(None if table.ids is None else "U64")
    return [ids, *(c.record_bytes if (c := columns.get(each.name)) else row_bytes([each]) for each in table.columns)]


class RecordedRows(NamedTuple):
    """A column of a chunk: its records, and the original rows that go with them."""

    takes: Recorded
    records: Tensor
    escapes: Tensor
    sample: Tensor

    def copy_into(self, targets: Mapping[str, Tensor], name: str) -> None:
        """Copy everything to the column's places in a frame; from a GPU, this is only queued."""
        for place, source in (
            (name, self.records),
            (escapes_name(name), self.escapes),
            (sample_in_frame(name), self.sample),
        ):
            if source.numel():
                targets[place].copy_(source.reshape(-1).view(torch.uint8), non_blocking=True)


class RecordSpan(NamedTuple):
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
        self._widths = frame_widths(table, columns)

    def spans(self, room: int, most_rows: int) -> list[RecordSpan]:
        """The chunks, each of ``most_rows`` at most, that fit ``room`` bytes: from the first row on, maybe not all."""
        spans: list[RecordSpan] = []
        at = 0
        while at < self._table.rows:
            rows = self._rows_that_fit(at, min(most_rows, self._table.rows - at), room)
            if not rows:
                break
            spans.append(RecordSpan(at, at + rows, {name: self._takes(name, at, at + rows) for name in self._columns}))
            room -= self._bytes(at, at + rows)
            at += rows
        return spans

    def rows(self, spans: Sequence[RecordSpan]) -> list[dict[str, RecordedRows]]:
        """The columns of each of these chunks, the first ones of the window."""
        columns = {name: self._rows_of(name, spans) for name in self._columns}
        return [{name: each[number] for name, each in columns.items()} for number in range(len(spans))]

    def _rows_of(self, name: str, spans: Sequence[RecordSpan]) -> list[RecordedRows]:
        """One column of all chunks: what goes with the records is gathered once for all of them."""
        takes = [span.takes[name] for span in spans]
        sampled = [sample_positions(s.stop - s.start, t.sample) + s.start for s, t in zip(spans, takes, strict=True)]
        own = self._columns[name]
        samples = own.values(self._table, torch.from_numpy(np.concatenate(sampled)))
        escapes = own.values(self._table, self._escaped[name][: sum(each.escapes for each in takes)])
        return [
            RecordedRows(take, self._records[name][span.start : span.stop], escape, sample)
            for span, take, escape, sample in zip(
                spans,
                takes,
                escapes.split([each.escapes for each in takes]),
                samples.split([each.sample for each in takes]),
                strict=True,
            )
        ]

    def _rows_that_fit(self, at: int, most: int, room: int) -> int:
        if self._bytes(at, at + most) <= room:
            return most
        return bisect_right(range(1, most + 1), room, key=lambda rows: self._bytes(at, at + rows))

    def _bytes(self, start: int, stop: int) -> int:
        """What frame_columns makes of these rows."""
        size = sum(padded((stop - start) * width) for width in self._widths)
        for name, own in self._columns.items():
            takes, width = self._takes(name, start, stop), row_bytes([own.spec])
            size += padded(takes.escapes * width) + padded(takes.sample * width)
        return size

    def _takes(self, name: str, start: int, stop: int) -> Recorded:
        own, at = self._columns[name], self._escaped_at[name]
        escapes = bisect_left(at, stop) - bisect_left(at, start)
        return Recorded(own.record_bytes, escapes, sample_rows(stop - start) if own.sampled else 0)
