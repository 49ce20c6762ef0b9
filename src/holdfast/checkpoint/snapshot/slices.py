"""A snapshot that is too large for the device buffer, read slice by slice between the steps of training.

Rows that training is about to move are put aside first, as they are (see ``displaced_rows``); a slice that is read
later is a copy of its piece of the table, with these rows put back. So every slice holds what the table held when the
snapshot began. Whatever else changes a table shows in the versions of its tensors, which are compared after the last
slice is read: then the snapshot is good for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import AREA_BYTES, Area, BoundLayout
from holdfast.checkpoint.snapshot.device_stage import StagedPart, TableStage, stage_part
from holdfast.checkpoint.snapshot.displaced_rows import Arena, DisplacedRows, row_size
from holdfast.checkpoint.snapshot.gpu_records import Encodable, encodable
from holdfast.checkpoint.snapshot.side_streams import Mark, SideStreams
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.errors import SaveFailed

LayOut = Callable[[TableCopy, Encodable, int], BoundLayout | None]  # from a place in the buffer on
OnMove = Callable[[Tensor | None], None]


class Movements(Protocol):
    """Who moves the rows of tables, which go by their numbers. See ``track.movements``."""

    def are_announced(self, table: int) -> bool:
        """Whether all that moves rows tells of it before."""
        ...

    def listen(self, table: int, on_move: OnMove | None) -> None:
        """Be told of rows (None: any) before they move; None ends it."""
        ...

    def is_overtaken(self, table: int) -> bool:
        """Whether rows may have moved unannounced since the snapshot began."""
        ...

    def name(self, table: int) -> str:
        """What it is called."""
        ...


class Overtaken(SaveFailed):
    """Something changed rows that a snapshot in slices had yet to read."""


class SliceRoom(NamedTuple):
    """How a part of a device buffer serves slices."""

    areas: tuple[Area, Area]  # that slices are written to in turns: one leaves while another is written
    scratch: Area  # a piece of a table, with the rows that have moved put back
    displaced: Area

    @classmethod
    def of(cls, start: int, stop: int) -> SliceRoom:
        """A quarter of the bytes for each."""
        size = max(0, stop - start) // 4 // AREA_BYTES * AREA_BYTES
        first, second, scratch, displaced = (Area(start + number * size, size) for number in range(4))
        return cls((first, second), scratch, displaced)


class _SliceArea:
    """An area, and what tells that it can be written to again."""

    def __init__(self, area: Area) -> None:
        self.area = area
        self.is_taken = False
        self._left: Mark | None = None

    def is_free(self, *, wait: bool) -> bool:
        """Whether all that was written to it has left."""
        if self.is_taken and self._left is not None and (wait or self._left.is_past()):
            self._left.wait()
            self.is_taken, self._left = False, None
        return not self.is_taken

    def leave(self, mark: Mark) -> None:
        """The last copy out of it is queued before this mark."""
        self._left = mark


class _Table:
    """A table, and how much of it was read."""

    def __init__(self, copy: TableCopy, displaced: DisplacedRows) -> None:
        self.copy = copy
        self.displaced = displaced
        self.done = 0

    @property
    def is_read(self) -> bool:
        """Whether all of it was."""
        return self.done == self.copy.rows

    def part(self, rows: int) -> TableCopy:
        """The next rows, where they are."""
        return self.copy.part(self.done, min(self.done + rows, self.copy.rows))


class DeviceSlices:
    """The slices of one device's tables."""

    def __init__(
        self, copies: Iterable[TableCopy], buffer: Tensor, room: SliceRoom, streams: SideStreams, lay_out: LayOut
    ) -> None:
        arena = Arena(buffer, room.displaced)
        self.tables = [_Table(copy, DisplacedRows(copy, arena)) for copy in copies]
        self._buffer = buffer
        self._areas = [_SliceArea(area) for area in room.areas]
        self._scratch = room.scratch
        self._streams = streams
        self._lay_out = lay_out
        self.size_bytes = 0  # of all that was written

    def fit(self) -> bool:
        """Whether some rows of each table fit an area, and the room for pieces with rows put back."""
        area = self._areas[0].area
        return all(self._next(table, area.offset, area, self._scratch.length) for table in self.tables)

    def take(self, *, wait: bool) -> StagedPart | None:
        """Read another slice; None if all is read, or both areas are still being emptied, unless told to ``wait``."""
        unread = [table for table in self.tables if not table.is_read]
        area = next((each for each in self._areas if each.is_free(wait=wait)), None) if unread else None
        if area is None:
            return None
        stages = self._stages(unread, area.area)
        area.is_taken = True
        part = stage_part(stages, self._buffer, self._streams)
        return replace(part, left=lambda: area.leave(self._streams.mark(self._buffer.device)))

    def _stages(self, tables: Iterable[_Table], area: Area) -> list[TableStage]:
        """As many rows as there is room for, from the first unread one on."""
        at, scratch = area.offset, Arena(self._buffer, self._scratch)
        stages: list[TableStage] = []
        for table in tables:
            found = self._next(table, at, area, None if table.displaced.are_none else scratch.left)
            if found is None:
                break
            part, layout = found
            table.done += part.rows
            if not table.displaced.are_none:
                part = _as_it_was(part, table.displaced, scratch)
            stages.append(TableStage(copy=part, columns=encodable(part), layout=layout))
            self.size_bytes += layout.stop - at
            at = layout.stop
            if not table.is_read:
                break
        return stages

    def _next(self, table: _Table, at: int, area: Area, scratch: int | None) -> tuple[TableCopy, BoundLayout] | None:
        """The next rows of a table that fit the rest of an area: all, or whole chunks of them; None if none do.

        ``scratch``: if a copy of them must fit so many bytes, too.
        """
        rest, columns = table.part(table.copy.rows), encodable(table.copy)
        stop, row_bytes = area.offset + area.length, sum(map(row_size, table.copy.tensors))
        most = rest.rows
        if scratch is not None and row_bytes:
            most = min(most, max(0, scratch - AREA_BYTES * len(rest.tensors)) // row_bytes)
        layout = self._lay_out(rest, columns, at)
        if layout is None or (layout.stop <= stop and most == rest.rows):
            return None if layout is None else (rest, layout)
        size = layout.chunk_rows
        chunks = min(most, rest.rows * (stop - at) // max(1, layout.stop - at)) // size
        for number in range(chunks, 0, -1):
            part = table.part(number * size)
            layout = self._lay_out(part, columns, at)
            if layout is not None and layout.stop <= stop:
                return part, layout
        return None


class Slices:
    """What is left to be read of a snapshot. Tables are listened to until they are read."""

    def __init__(self, devices: Sequence[DeviceSlices], movements: Movements) -> None:
        self._devices = devices
        self._movements = movements
        self._problem: Exception | None = None
        self.read_all: Callable[[], object] = self._cannot  # reads everything, with training waiting
        for table in self._unread():
            movements.listen(table.copy.index, partial(self._before_move, table))

    @property
    def are_read(self) -> bool:
        """Whether nothing is left."""
        return not self._unread()

    @property
    def size_bytes(self) -> int:
        """What was written into device buffers so far."""
        return sum(device.size_bytes for device in self._devices)

    def take(self, *, wait: bool = False) -> list[StagedPart]:
        """Read a slice of each device that has room for one; raises Overtaken. ``wait``: until there is room."""
        if self._problem is not None:
            raise self._problem
        unread = self._unread()
        taken = [part for device in self._devices if (part := device.take(wait=wait)) is not None]
        for table in unread:  # looked at after they were read, if they were
            if self._movements.is_overtaken(table.copy.index):
                raise Overtaken(
                    f"table {self._movements.name(table.copy.index)!r} was changed outside of optimizer.step() while "
                    "a snapshot of it was taken in slices; from now on it is copied at once"
                )
            if table.is_read:
                self._movements.listen(table.copy.index, None)
        return taken

    def close(self) -> None:
        """Listen no longer."""
        for device in self._devices:
            for table in device.tables:
                self._movements.listen(table.copy.index, None)

    def _unread(self) -> list[_Table]:
        return [table for device in self._devices for table in device.tables if not table.is_read]

    def _before_move(self, table: _Table, ids: Tensor | None) -> None:
        """In the middle of an optimizer's step, which must not fail because of a save."""
        if table.is_read or self._problem is not None:
            return
        try:
            if ids is None or not table.displaced.keep(ids):
                self.read_all()
        except Exception as error:
            self._problem = error

    def _cannot(self) -> None:
        raise SaveFailed("rows moved before anybody could read them")


def _as_it_was(part: TableCopy, displaced: DisplacedRows, scratch: Arena) -> TableCopy:
    """A copy of some rows with those put back that have moved."""
    columns = tuple(
        scratch.take(part.rows, tensor).copy_(tensor.detach()[part.range], non_blocking=True) for tensor in part.tensors
    )
    displaced.put_back(columns, part.range.start)
    return replace(part, tensors=columns, origin=part.start)
