"""Where a table's rows lie in a device buffer before anybody knows how many there are.

``[ids] column column ... [escapes] [sample] ...``: each column in one piece, with room for ``bound`` rows. Chunks are
cut before the count is known, too, every ``chunk_rows`` rows, so that the device can count ids from each chunk's first
one, and draw its sample. When the *tally* (how many rows there are, where chunks begin and end, how many of their rows
no record holds) has come across, ``close`` says which of these bytes are chunks; the rest are nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from holdfast.checkpoint.wire.frame_layout import Recorded, frame_columns, sample_in_frame, sample_rows
from holdfast.codec.chunk import escapes_name
from holdfast.format.layout import ALIGNMENT, IDS, Column, padded, row_bytes, rows_that_fit
from holdfast.format.rows import id_bytes
from holdfast.types import ColumnSpec

AREA_BYTES = 512  # areas begin at multiples of it, as torch's allocations do: kernels are compiled for that
_MOST_SAMPLED = sample_rows(2**31)


class RecordWidth(NamedTuple):
    """A column that is encoded: the bytes of its records, and whether what they lose is measured."""

    record_bytes: int
    sampled: bool


class Area(NamedTuple):
    """Some bytes of a device buffer."""

    offset: int
    length: int


class Place(NamedTuple):
    """A column of a chunk in a frame, and its bytes in the device buffer."""

    column: Column
    source: Area


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChunk:
    """A chunk of rows that lies in a device buffer."""

    rows: int
    first: int  # by its number in the table
    last: int
    ids: str | None
    recorded: Mapping[str, Recorded]
    places: tuple[Place, ...]


class RoomExceeded(Exception):
    """There are more rows than there was room for; with how many ``escapes``, where it was these."""

    def __init__(self, problem: str, *, escapes: int = 0) -> None:
        super().__init__(problem)
        self.escapes = escapes


@dataclass(frozen=True, kw_only=True)
class BoundLayout:
    """The areas of one table, from ``start`` on."""

    columns: tuple[ColumnSpec, ...]
    records: Mapping[str, RecordWidth]
    bound: int
    chunk_rows: int
    ids: str | None  # how they are stored; None: contiguous rows
    escapes: int  # room for so many, in each encoded column
    start: int = 0

    @cached_property
    def chunks(self) -> int:
        """How many there are at most."""
        return -(-self.bound // self.chunk_rows) if self.bound else 0

    @cached_property
    def sample(self) -> int:
        """Sampled rows of a chunk, however many rows it will have."""
        return sample_rows(min(self.chunk_rows, self.bound))

    @property
    def tally_numbers(self) -> int:
        """How many numbers its tally has: rows, first and last ids of chunks, escapes of chunks by column."""
        return (0 if self.ids is None else 1 + 2 * self.chunks) + self.chunks * len(self.records)

    @cached_property
    def areas(self) -> dict[str, Area]:
        """By the names of frame columns."""
        lengths = {IDS: self.chunks * self.chunk_rows * id_bytes(self.ids)} if self.ids is not None else {}
        for column in self.columns:
            lengths[column.name] = self.bound * self._width(column)
        for column in self.columns:
            if (own := self.records.get(column.name)) is not None:
                lengths[escapes_name(column.name)] = self.escapes * row_bytes([column])
                sampled = self.chunks * self.sample if own.sampled else 0
                lengths[sample_in_frame(column.name)] = sampled * row_bytes([column])
        areas, offset = {}, self.start
        for name, length in lengths.items():
            areas[name] = Area(offset, length)
            offset += aligned(length)
        return areas

    @cached_property
    def stop(self) -> int:
        """Where the next table can begin."""
        return max((area.offset + aligned(area.length) for area in self.areas.values()), default=self.start)

    def close(self, tally: Tally) -> list[StagedChunk]:
        """The chunks, once it is known how many rows there are. Raises RoomExceeded."""
        if not 0 <= tally.rows <= self.bound:
            raise RoomExceeded(f"{tally.rows} rows were touched, and no more than {self.bound} were expected")
        for found in tally.escapes.values():
            if sum(found) > self.escapes:
                raise RoomExceeded(f"{sum(found)} rows cannot be encoded", escapes=sum(found))
        areas = self.areas
        used = dict.fromkeys(self.records, 0)
        closed = []
        for number in range(-(-tally.rows // self.chunk_rows)):
            escapes = {name: found[number] for name, found in tally.escapes.items()}
            closed.append(self._chunk(number, tally, escapes, used, areas))
            used = {name: used[name] + found for name, found in escapes.items()}
        return closed

    def _chunk(
        self,
        number: int,
        tally: Tally,
        escapes: Mapping[str, int],
        used: Mapping[str, int],
        areas: Mapping[str, Area],
    ) -> StagedChunk:
        at = number * self.chunk_rows
        rows = min(self.chunk_rows, tally.rows - at)
        recorded = {
            name: Recorded(own.record_bytes, escapes[name], self.sample if own.sampled else 0)
            for name, own in self.records.items()
        }
        skipped = {IDS: at * id_bytes(self.ids)}  # bytes of each area that belong to the chunks before
        for column in self.columns:
            skipped[column.name] = at * self._width(column)
            if column.name in recorded:
                skipped[escapes_name(column.name)] = used[column.name] * row_bytes([column])
                sampled = number * recorded[column.name].sample
                skipped[sample_in_frame(column.name)] = sampled * row_bytes([column])
        placed = frame_columns(self.columns, rows, self.ids, recorded)
        return StagedChunk(
            rows=rows,
            first=tally.firsts[number],
            last=tally.lasts[number],
            ids=self.ids,
            recorded=recorded,
            places=tuple(
                Place(each, Area(areas[each.name].offset + skipped[each.name], each.length)) for each in placed
            ),
        )

    def _width(self, column: ColumnSpec) -> int:
        own = self.records.get(column.name)
        return own.record_bytes if own is not None else row_bytes([column])


class Tally(NamedTuple):
    """What only the device knew, per chunk where it is a sequence."""

    rows: int
    firsts: Sequence[int]
    lasts: Sequence[int]
    escapes: Mapping[str, Sequence[int]]  # by encoded column


def aligned(length: int) -> int:
    """Bytes that an area takes."""
    return -(-length // AREA_BYTES) * AREA_BYTES


def rows_of_chunk(
    columns: Sequence[ColumnSpec], records: Mapping[str, RecordWidth], frame_bytes: int, ids: str | None
) -> int:
    """The most rows that fit a frame even if no record holds any of them; no more than fit it as they are.

    0 if no row fits.
    """
    names = {column.name: row_bytes([column]) for column in columns}
    width = id_bytes(ids) + sum(own.record_bytes for own in records.values()) + sum(names.values())
    sampled = sum(names[name] for name, own in records.items() if own.sampled)
    room = frame_bytes - padded(ALIGNMENT) * (1 + len(columns) + 2 * len(records))
    rows = max((room - _MOST_SAMPLED * sampled) // width, room // (width + sampled)) if width else room
    return max(0, min(rows, rows_that_fit(columns, frame_bytes, ids)))
