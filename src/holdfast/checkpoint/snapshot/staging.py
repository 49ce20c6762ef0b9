"""Takes snapshots on the device: rows and state go into a buffer there, and leave it while training goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import Area, aligned
from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.device_stage import StagedTable, TableStage, stage_state, stage_tables, warm_up
from holdfast.checkpoint.snapshot.gpu_records import encodable
from holdfast.checkpoint.snapshot.side_streams import Mark, SideStreams
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.table_layouts import TableLayouts
from holdfast.checkpoint.snapshot.tensor_filler import bytes_of

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Staged:
    """A snapshot of which a part lies in device buffers, and ``rest``, which is to be copied now."""

    tables: tuple[StagedTable, ...]
    state: Mapping[int, Tensor]  # bytes of state tensors on their devices, by their numbers
    tallied: tuple[Mark, ...]  # past once all tallies are in host memory
    rest: Captured
    size_bytes: int

    def is_tallied(self) -> bool:
        """Whether it is known how many rows there are."""
        return all(mark.is_past() for mark in self.tallied)

    def await_tally(self) -> None:
        """Until it is known."""
        for mark in self.tallied:
            mark.wait()


@dataclass(slots=True, kw_only=True, eq=False)
class _Plan:
    """What goes into the buffer of one device."""

    device: torch.device
    tables: list[TableStage] = field(default_factory=list)
    state: dict[int, Tensor] = field(default_factory=dict)
    areas: dict[int, Area] = field(default_factory=dict)
    used: int = 0


class Staging:
    """A buffer of a set size on each device. One snapshot at a time: the last one must have left the buffers.

    Orders itself after the current stream of each device, as the kernels of the optimizer's step are; work on other
    streams that changes tables has to be waited for there by whoever queued it.
    """

    def __init__(self, streams: SideStreams, sizes: Mapping[torch.device, int], *, frame_bytes: int) -> None:
        self._streams = streams
        self._sizes = dict(sizes)
        self._layouts = TableLayouts(frame_bytes)
        self._buffers: dict[torch.device, Tensor] = {}
        self._parts: dict[torch.device, tuple[dict[int, Area], dict[int, Tensor]]] = {}  # where state went last
        self._escapes: dict[int, int] = {}  # by table: room for more of them than usual
        self._distrusted: set[int] = set()  # tables that had more rows than their bound
        self._told_bytes = 0

    @property
    def streams(self) -> SideStreams:
        """What copies out of the buffers."""
        return self._streams

    def reserve(self) -> None:
        """Take the buffers' memory; a device that has none left does without."""
        for device, size in self._sizes.items():
            if size and device not in self._buffers:
                try:
                    self._buffers[device] = self._streams.reserve(device, size)
                    warm_up(self._buffers[device])
                except torch.OutOfMemoryError:
                    logger.warning(
                        "%s has no %.1f MiB left for snapshots: training waits for each of them to be copied; pass a "
                        "smaller Settings(device_buffer_bytes=...)",
                        device,
                        size / 2**20,
                    )
                    self._sizes[device] = 0

    def stage(self, captured: Captured) -> Staged | None:
        """Queue the copies of everything on devices; None if a buffer is too small or there is nothing to stage."""
        self.reserve()
        plans = self._plans(captured)
        if plans is None or not all(self._fits(plan) for plan in plans.values()):
            return None
        return self._staged(captured, list(plans.values()))

    def make_room(self, table: int, escapes: int) -> None:
        """A snapshot had more rows of this table that no record holds than there was room for."""
        self._escapes[table] = 2 * escapes

    def distrust(self, table: int) -> None:
        """A snapshot had more rows of this table than its bound said: from now on, they are counted first."""
        self._distrusted.add(table)

    def _plans(self, captured: Captured) -> dict[torch.device, _Plan] | None:
        plans: dict[torch.device, _Plan] = {}
        for number, tensor in enumerate(captured.tensors):
            if self._streams.covers(tensor):
                plan = plans.setdefault(tensor.device, _Plan(device=tensor.device))
                plan.state[number] = raw = bytes_of(tensor)
                plan.areas[number] = Area(plan.used, len(raw))
                plan.used += aligned(len(raw))
        for copy in captured.copies:
            if self._is_staged(copy):
                if copy.unlisted is not None and copy.index in self._distrusted:
                    return None
                device = copy.tensors[0].device
                plan = plans.setdefault(device, _Plan(device=device))
                columns = encodable(copy)
                layout = self._layouts.of(copy, columns, plan.used, escapes=self._escapes.get(copy.index, 0))
                if layout is None:
                    return None
                plan.tables.append(TableStage(copy=copy, columns=columns, layout=layout))
                plan.used = layout.stop
        return plans or None

    def _fits(self, plan: _Plan) -> bool:
        """Whether the device's buffer is large enough; if not, tells so once for each larger size."""
        size = self._sizes.get(plan.device, 0)
        if plan.used <= size:
            return True
        if size and plan.used > self._told_bytes:
            self._told_bytes = plan.used
            logger.warning(
                "training waits for snapshots of %s to be copied, because its device buffer has only %.1f MiB; set "
                "Settings(device_buffer_bytes=%d) to avoid this",
                plan.device,
                size / 2**20,
                plan.used,
            )
        return False

    def _staged(self, captured: Captured, plans: Sequence[_Plan]) -> Staged:
        tables: list[StagedTable] = []
        state: dict[int, Tensor] = {}
        marks: list[Mark] = []
        for plan in plans:
            buffer = self._buffers[plan.device]
            state |= stage_state(plan.state, self._parts_of(buffer, plan.areas))
            staged, tallies = stage_tables(plan.tables, buffer, self._streams)
            self._streams.follow(plan.device)
            self._streams.copy(plan.device, tallies)
            marks.append(self._streams.mark(plan.device))
            tables += staged
        done = {each.copy.index for plan in plans for each in plan.tables}
        rest = replace(captured, copies=tuple(copy for copy in captured.copies if copy.index not in done))
        return Staged(
            tables=tuple(tables),
            state=state,
            tallied=tuple(marks),
            rest=rest,
            size_bytes=sum(plan.used for plan in plans),
        )

    def _parts_of(self, buffer: Tensor, areas: Mapping[int, Area]) -> dict[int, Tensor]:
        """The areas of a buffer as tensors: those of the last save, where it had the same."""
        last = self._parts.get(buffer.device)
        if last is None or last[0] != areas:
            parts = {number: buffer[at.offset : at.offset + at.length] for number, at in areas.items()}
            last = self._parts[buffer.device] = (dict(areas), parts)
        return last[1]

    def _is_staged(self, copy: TableCopy) -> bool:
        return bool(copy.tensors) and all(self._streams.covers(tensor) for tensor in copy.tensors)
