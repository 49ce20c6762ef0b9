"""Splits a chunk's records by the checkpoint that replaced them. Bytes move as they are; nothing is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.codec.chunk import codecs_of, dim_of, escapes_name, stored_columns
from holdfast.errors import DamagedData
from holdfast.format.layout import IDS, Column, chunk_bytes
from holdfast.format.manifest import ALIVE, EXACT, RowsChunk, Segment
from holdfast.format.rows import pack_ids
from holdfast.types import ColumnSpec

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records of one chunk in a new order, as the bytes of a new chunk."""

    data: NDArray[np.uint8]
    rows: int
    first: int
    last: int
    ids: str
    segments: tuple[Segment, ...]
    escapes: tuple[int, ...] = ()


def known_labels(chunk: RowsChunk, replacing: int) -> NDArray[np.int32]:
    """For each record the checkpoint that replaced it, as far as the chunk's segments say; ALIVE for the others.

    Segments of checkpoints after the first ``replacing`` ones belong to a timeline that was left.
    """
    if not chunk.segments:
        return np.full(chunk.rows, ALIVE, dtype=np.int32)
    labels = [s.replaced if s.replaced < replacing else ALIVE for s in chunk.segments]
    return np.repeat(np.array(labels, dtype=np.int32), [segment.rows for segment in chunk.segments])


def add_labels(
    labels: NDArray[np.int32], ids: Ids, replaced: Iterable[tuple[int, Ids]], *, name: str
) -> NDArray[np.int32]:
    """``labels`` with the rows that each checkpoint replaced; every one of these must be alive in the chunk."""
    labels = labels.copy()
    order = np.argsort(ids, kind="stable")
    for label, lost in replaced:
        at = np.searchsorted(ids, lost, sorter=order)
        found = order[np.minimum(at, len(order) - 1)]
        if not np.array_equal(ids[found], lost):
            raise DamagedData(name, "does not hold the rows it is recorded to hold")
        labels[found] = label
    return labels


def split(
    columns: Sequence[ColumnSpec], chunk: RowsChunk, data: memoryview, ids: Ids, labels: NDArray[np.int32]
) -> tuple[Records | None, Records | None]:
    """The living records, and the replaced ones, last replaced first, each by their ids; None where there are none."""
    order = np.argsort(ids, kind="stable")
    alive = order[labels[order] == ALIVE]
    dead = order[labels[order] != ALIVE]
    dead = dead[np.argsort(-labels[dead], kind="stable")]
    source = _Source(tuple(columns), chunk, data, ids)
    return source.take(alive, ()), source.take(dead, _segments(labels[dead]))


def _segments(labels: NDArray[np.int32]) -> tuple[Segment, ...]:
    starts = np.flatnonzero(np.diff(labels, prepend=-2))
    counts = np.diff(starts, append=len(labels))
    return tuple(
        Segment(replaced=int(label), rows=int(count)) for label, count in zip(labels[starts], counts, strict=True)
    )


class _Source:
    """A chunk that records are taken out of."""

    def __init__(self, specs: tuple[ColumnSpec, ...], chunk: RowsChunk, data: memoryview, ids: Ids) -> None:
        self._specs = specs
        self._chunk = chunk
        self._ids = ids
        placed = stored_columns(specs, chunk.rows, chunk.ids, chunk.codec, chunk.escapes)
        self._columns = {column.name: _entries(column, data) for column in placed if column.name != IDS}
        self._escaped = self._escape_numbers()

    def take(self, order: NDArray[np.intp], segments: tuple[Segment, ...]) -> Records | None:
        """The records at these places, in this order, as a chunk."""
        if not len(order):
            return None
        taken = self._ids[order]
        first, last = int(taken.min()), int(taken.max())
        in_order = self._chunk.codec != EXACT and not segments
        dtype, packed = pack_ids(taken, in_order=in_order)
        escapes = {name: numbers[order][numbers[order] >= 0] for name, numbers in self._escaped.items()}
        counts = tuple(len(escapes.get(spec.name, ())) for spec in self._specs) if self._chunk.escapes else ()
        columns = stored_columns(self._specs, len(order), dtype, self._chunk.codec, counts)
        body = np.zeros(chunk_bytes(columns), dtype=np.uint8)
        places: dict[str, NDArray[np.intp]] = {escapes_name(name): numbers for name, numbers in escapes.items()}
        for column in columns:
            into = body[column.offset : column.offset + column.length]
            if column.name == IDS:
                into[:] = packed
            elif column.length:
                entries = self._columns[column.name]
                at = places.get(column.name, order)
                np.take(entries, at, axis=0, out=into.reshape(-1, entries.shape[1]), mode="clip")
        return Records(data=body, rows=len(order), first=first, last=last, ids=dtype, segments=segments, escapes=counts)

    def _escape_numbers(self) -> dict[str, NDArray[np.intp]]:
        """For each column with escapes, the number of each record's escape; -1: none."""
        codecs, found = codecs_of(self._chunk.codec), {}
        for spec, count in zip(self._specs, self._chunk.escapes, strict=bool(codecs)):
            if codecs and count:
                flags = codecs[spec.name].escaped(self._columns[spec.name], dim_of(spec), spec.dtype)
                found[spec.name] = np.where(flags, np.cumsum(flags) - 1, -1)
        return found


def _entries(column: Column, data: memoryview) -> NDArray[np.uint8]:
    width = column.length // column.shape[0] if column.shape[0] else 0
    flat = np.frombuffer(data[column.offset : column.offset + column.length], dtype=np.uint8)
    return flat.reshape(column.shape[0], width)
