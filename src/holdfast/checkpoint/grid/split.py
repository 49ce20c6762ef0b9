"""Splits a chunk's records by the checkpoint that replaced them. Bytes move as they are; nothing is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DamagedData
from holdfast.format.layout import IDS, Column, chunk_bytes, chunk_columns, ids_dtype
from holdfast.format.manifest import ALIVE, RowsChunk, Segment
from holdfast.format.rows import ID_TYPES
from holdfast.types import ColumnSpec

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records of one chunk in a new order, as bytes of a chunk of their own."""

    data: NDArray[np.uint8]
    rows: int
    first: int
    last: int
    ids: str
    segments: tuple[Segment, ...]


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
            raise DamagedData(name, "does not hold the rows that it is said to hold")
        labels[found] = label
    return labels


def split(
    columns: Sequence[ColumnSpec], chunk: RowsChunk, data: memoryview, ids: Ids, labels: NDArray[np.int32]
) -> tuple[Records | None, Records | None]:
    """The living records, and the replaced ones, last replaced first, each by their ids; None where there are none."""
    placed = chunk_columns(columns, chunk.rows, chunk.ids)
    order = np.argsort(ids, kind="stable")
    alive = order[labels[order] == ALIVE]
    dead = order[labels[order] != ALIVE]
    dead = dead[np.argsort(-labels[dead], kind="stable")]
    return _take(columns, placed, data, ids, alive, ()), _take(
        columns, placed, data, ids, dead, _segments(labels[dead])
    )


def _segments(labels: NDArray[np.int32]) -> tuple[Segment, ...]:
    starts = np.flatnonzero(np.diff(labels, prepend=-2))
    counts = np.diff(starts, append=len(labels))
    return tuple(
        Segment(replaced=int(label), rows=int(count)) for label, count in zip(labels[starts], counts, strict=True)
    )


def _take(
    specs: Sequence[ColumnSpec],
    placed: Sequence[Column],
    data: memoryview,
    ids: Ids,
    order: NDArray[np.intp],
    segments: tuple[Segment, ...],
) -> Records | None:
    if not len(order):
        return None
    taken = ids[order]
    first, last = int(taken.min()), int(taken.max())
    dtype = ids_dtype(first, last)
    target = chunk_columns(specs, len(order), dtype)
    body = np.zeros(chunk_bytes(target), dtype=np.uint8)
    source = {column.name: column for column in placed}
    for column in target:
        into = body[column.offset : column.offset + column.length]
        if column.name == IDS:
            into[:] = (taken - first).astype(ID_TYPES[dtype]).view(np.uint8)
        elif column.length:
            old = source[column.name]
            width = old.length // old.shape[0]
            records = np.frombuffer(data[old.offset : old.offset + old.length], dtype=np.uint8)
            np.take(records.reshape(-1, width), order, axis=0, out=into.reshape(-1, width), mode="clip")
    return Records(data=body, rows=len(order), first=first, last=last, ids=dtype, segments=segments)
