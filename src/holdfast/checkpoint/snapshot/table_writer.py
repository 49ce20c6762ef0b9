"""Writes a table's rows into a device buffer with the operations of torch, on any device.

The reference of ``fused_writer``. Nothing here waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import BoundLayout
from holdfast.checkpoint.snapshot.gpu_records import Encodable, EncodableColumn
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.touched_rows import BoundedIds, TouchedRows, known_ids
from holdfast.checkpoint.wire.frame_layout import sample_in_frame
from holdfast.codec.chunk import escapes_name
from holdfast.format.layout import IDS
from holdfast.kernels.bit_sets import tensors as sets
from holdfast.kernels.quantize import tensors


class TableWriter:
    """Writes one table into its areas."""

    def __init__(self, table: TableCopy, columns: Encodable, layout: BoundLayout, buffer: Tensor) -> None:
        self._table = table
        self._columns = columns
        self._layout = layout
        self._buffer = buffer
        self._areas = layout.areas
        self._device = buffer.device
        self._listed = self._list()

    def write(self) -> Tensor:
        """Write everything; returns the tally."""
        tally: list[Tensor] = []
        if self._listed is not None:
            tally += [self._listed.total, *self._write_ids(self._listed)]
        for spec, source in zip(self._table.columns, self._table.tensors, strict=True):
            own = self._columns.get(spec.name)
            if own is None:
                self._write_rows(spec.name, source.detach())
            else:
                tally.append(self._write_records(spec.name, own))
        return torch.cat(tally) if tally else torch.empty(0, dtype=torch.int64, device=self._device)

    @property
    def _ids(self) -> Tensor | None:
        """Of all rows there is room for."""
        return None if self._listed is None else self._listed.ids[: self._layout.bound]

    def _list(self) -> BoundedIds | None:
        length = self._layout.chunks * self._layout.chunk_rows
        if isinstance(self._table.unlisted, TouchedRows):
            return self._table.unlisted.bounded(length)
        return None if self._table.ids is None else known_ids(self._table.ids, length)

    def _write_ids(self, listed: BoundedIds) -> tuple[Tensor, Tensor]:
        """Count ids from each chunk's first one; returns the first and the last id of each."""
        ids = listed.ids.view(self._layout.chunks, self._layout.chunk_rows)
        integer = torch.int32 if self._layout.ids == "U32" else torch.int64  # the same bits as the unsigned type
        self._area(IDS).view(integer).view(ids.shape).copy_(ids - ids[:, :1])
        ends = torch.minimum(self._chunk_starts() + self._layout.chunk_rows, listed.total) - 1
        return ids[:, 0].contiguous(), listed.ids.index_select(0, ends.clamp_(min=0))

    def _write_rows(self, name: str, source: Tensor) -> None:
        rows = self._layout.bound
        target = self._area(name).view(source.dtype).view(rows, *source.shape[1:])
        if (ids := self._ids) is None:
            target.copy_(source[self._table.range])
        else:
            torch.index_select(source, 0, ids, out=target)

    def _write_records(self, name: str, own: EncodableColumn) -> Tensor:
        """Write a column's records, the rows that none of them holds, and the sample; returns the escapes of chunks."""
        records = self._area(name).view(self._layout.bound, own.record_bytes)
        source = own.tensor[self._table.range] if self._ids is None else own.tensor
        tensors.encode(source, own.codec.scheme, self._ids, records, base=own.base)
        escaped, per_chunk = self._escapes(records)
        self._write_values(escapes_name(name), own, escaped)
        if own.sampled:
            self._write_values(sample_in_frame(name), own, self._sampled())
        return per_chunk

    def _escapes(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """The numbers of rows that no record holds, in a list with room for some, and how many each chunk has."""
        bound = self._layout.bound
        flags = tensors.escape_flags(records)
        if self._listed is not None:
            flags &= torch.arange(bound, device=self._device) < self._listed.total
        bits = sets.new_set(bound, self._device)
        sets.mark_nonzero_rows(bits, flags.view(bound, 1))
        places, found = sets.list_bounded(bits, 0, bound, bound=self._layout.escapes, fill=bound)
        ends = self._chunk_starts() + self._layout.chunk_rows
        before = torch.searchsorted(places, ends)
        before[-1:].copy_(found)  # all of them, so that it shows where the room did not suffice
        return places.clamp_(max=bound - 1), torch.diff(before, prepend=before.new_zeros(1))

    def _sampled(self) -> Tensor:
        """The numbers of each chunk's sampled rows (see ``sample_positions``)."""
        starts, sample = self._chunk_starts(), self._layout.sample
        rows = (self._count() - starts).clamp_(0, self._layout.chunk_rows)
        positions = torch.arange(sample, device=self._device) * rows[:, None] // sample
        return (positions + starts[:, None]).clamp_(max=self._layout.bound - 1).view(-1)

    def _write_values(self, area: str, own: EncodableColumn, numbers: Tensor) -> None:
        """Write rows as they are, by their numbers among those to be copied."""
        if not len(numbers):
            return
        ids = numbers + self._table.range.start if self._ids is None else self._ids.index_select(0, numbers)
        target = self._area(area).view(own.tensor.dtype).view(len(numbers), -1)
        torch.index_select(own.tensor, 0, ids, out=target)

    def _count(self) -> Tensor | int:
        return self._layout.bound if self._listed is None else self._listed.total

    def _chunk_starts(self) -> Tensor:
        size = self._layout.chunk_rows
        return torch.arange(0, self._layout.chunks * size, size, device=self._device)

    def _area(self, name: str) -> Tensor:
        area = self._areas[name]
        return self._buffer[area.offset : area.offset + area.length]
