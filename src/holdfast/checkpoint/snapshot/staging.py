"""Takes snapshots on the device: rows and state go into a buffer there, and leave it while training goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import BoundLayout
from holdfast.checkpoint.snapshot.captured import Snapshot
from holdfast.checkpoint.snapshot.device_stage import (
    StagedPart,
    TableStage,
    Write,
    stage_part,
    warm_up,
    writer,
)
from holdfast.checkpoint.snapshot.gpu_records import Encodable
from holdfast.checkpoint.snapshot.known_views import KnownViews
from holdfast.checkpoint.snapshot.side_streams import SideStreams
from holdfast.checkpoint.snapshot.slices import DeviceSlices, Movements, SliceRoom, Slices
from holdfast.checkpoint.snapshot.state_plan import DeviceState, StatePlan, StatePlans
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.table_layouts import TableLayouts

logger = logging.getLogger("holdfast")

_MOST_HOST_BYTES = 2**26  # of state in host memory, that are copied twice; of more, training waits for each snapshot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Staged:
    """A snapshot of which a part lies in device buffers.

    ``slices`` of it are left where they are, and are read later. ``rest`` are tables in host memory, to be copied now.
    ``host`` are copies of state tensors there, by their numbers.
    """

    part: StagedPart
    rest: tuple[TableCopy, ...]
    host: Mapping[int, Tensor]
    part_bytes: int
    slices: Slices | None = None

    @property
    def size_bytes(self) -> int:
        """What it has taken of device buffers."""
        return self.part_bytes + (self.slices.size_bytes if self.slices is not None else 0)


@dataclass(slots=True, kw_only=True, eq=False)
class _Plan:
    """What goes into the buffer of one device."""

    device: torch.device
    tables: list[TableStage] = field(default_factory=list)
    state: DeviceState | None = None
    used: int = 0


class Staging:
    """A buffer of a set size on each device. One snapshot at a time: the last one must have left the buffers.

    Orders itself after the current stream of each device, as the kernels of the optimizer's step are; work on other
    streams that changes tables has to be waited for there by whoever queued it.
    """

    def __init__(
        self,
        streams: SideStreams,
        sizes: Mapping[torch.device, int],
        *,
        frame_bytes: int,
        movements: Movements | None = None,
    ) -> None:
        """With ``movements``, whole tables that are too large can be read in slices."""
        self._streams = streams
        self._movements = movements
        self._sizes = dict(sizes)
        self._layouts = TableLayouts(frame_bytes)
        self._views = KnownViews()
        self._buffers: dict[torch.device, Tensor] = {}
        self._writers: dict[torch.device, Write] = {}
        self._states = StatePlans(streams)
        self._escapes: dict[int, int] = {}  # by table: room for more of them than usual
        self._distrusted: set[int] = set()  # tables that had more rows than their bound
        self._told_bytes = 0
        self._told_host = False

    @property
    def streams(self) -> SideStreams:
        """What copies out of the buffers."""
        return self._streams

    def reserve(self) -> None:
        """Take the buffers' memory; a device that has none left does without."""
        for device, size in self._sizes.items():
            if size and device not in self._buffers:
                try:
                    buffer = self._streams.reserve(device, size)
                    warm_up(buffer)
                    self._buffers[device], self._writers[device] = buffer, writer(buffer, self._streams)
                except torch.OutOfMemoryError:
                    logger.warning(
                        "%s has no %.1f MiB left for snapshots: training waits for each of them to be copied; pass a "
                        "smaller Settings(device_buffer_bytes=...)",
                        device,
                        size / 2**20,
                    )
                    self._sizes[device] = 0

    def stage(self, captured: Snapshot, *, in_slices: bool = True) -> Staged | None:
        """Queue the copies of everything on devices; None if a buffer is too small or there is nothing to stage.

        ``in_slices``: where a buffer is too small, tables may be left to be read later, if nothing moves their rows
        without telling.
        """
        self.reserve()
        state = self._states.of(captured.live(), self._buffers)
        plans = self._plans(state, captured.copies)
        if plans is None or self._has_much(state.host):
            return None
        if all([self._has_room(plan) for plan in plans.values()]):
            return self._staged(captured.copies, state.host, list(plans.values()))
        staged = self._sliced(captured, self._movements) if in_slices and self._movements is not None else None
        if staged is None:
            self._tell_small(plans.values())
        return staged

    def make_room(self, table: int, escapes: int) -> None:
        """A snapshot had more rows of this table that no record holds than there was room for."""
        self._escapes[table] = 2 * escapes

    def distrust(self, table: int) -> None:
        """A snapshot had more rows of this table than its bound said: from now on, they are counted first."""
        self._distrusted.add(table)

    def _plans(self, state: StatePlan, copies: Iterable[TableCopy]) -> dict[torch.device, _Plan] | None:
        """What goes where."""
        plans = {each.device: _Plan(device=each.device, state=each, used=each.used) for each in state.devices}
        for copy in copies:
            if self._is_staged(copy):
                if copy.unlisted is not None and copy.index in self._distrusted:
                    return None
                device = copy.tensors[0].device
                if (plan := plans.get(device)) is None:
                    plan = plans[device] = _Plan(device=device)
                columns = self._views.columns(copy)
                layout = self._laid_out(copy, columns, plan.used)
                if layout is None:
                    return None
                plan.tables.append(TableStage(copy=copy, columns=columns, layout=layout))
                plan.used = layout.stop
        return plans or None

    def _has_room(self, plan: _Plan) -> bool:
        """Whether the device's buffer is large enough."""
        return plan.used <= self._sizes.get(plan.device, 0)

    def _has_much(self, host: Mapping[int, Tensor]) -> bool:
        """Whether there is too much state in host memory to copy it twice: say so, once."""
        if not host:
            return False
        size = sum([tensor.nbytes for tensor in host.values()])
        if size > _MOST_HOST_BYTES and not self._told_host:
            self._told_host = True
            logger.warning(
                "training waits for snapshots to be copied, because %.1f MiB of the state beside the tables are in "
                "host memory; move dense weights and optimizers to the device to avoid this",
                size / 2**20,
            )
        return size > _MOST_HOST_BYTES

    def _tell_small(self, plans: Iterable[_Plan]) -> None:
        """Training waits for this snapshot: say so, once for each larger size."""
        for plan in plans:
            size = self._sizes.get(plan.device, 0)
            if size and plan.used > max(size, self._told_bytes):
                self._told_bytes = plan.used
                logger.warning(
                    "training waits for snapshots of %s to be copied, because its device buffer has only %.1f MiB; "
                    "set Settings(device_buffer_bytes=%d) to avoid this",
                    plan.device,
                    size / 2**20,
                    plan.used,
                )

    def _sliced(self, captured: Snapshot, movements: Movements) -> Staged | None:
        """Stage what is small, and leave large tables to be read in slices; None if that is not possible."""
        sliced = [copy for copy in captured.copies if self._is_sliced(copy, movements)]
        left = {copy.index for copy in sliced}
        first = tuple(copy for copy in captured.copies if copy.index not in left)
        state = self._states.of(captured.live(), self._buffers)
        plans = self._plans(state, first) or {}
        devices = [self._slices_of(device, sliced, plans.get(device)) for device in _devices_of(sliced)]
        if self._has_much(state.host) or not devices:
            return None
        if not all(map(self._has_room, plans.values())) or not all(each.fit() for each in devices):
            return None
        staged = self._staged(first, state.host, list(plans.values()))
        return replace(staged, slices=Slices(devices, movements))

    def _is_sliced(self, copy: TableCopy, movements: Movements) -> bool:
        is_whole = copy.ids is None and copy.unlisted is None and copy.rows > 0
        return is_whole and self._is_staged(copy) and movements.are_announced(copy.index)

    def _slices_of(self, device: torch.device, sliced: Sequence[TableCopy], plan: _Plan | None) -> DeviceSlices:
        return DeviceSlices(
            [copy for copy in sliced if copy.tensors[0].device == device],
            self._buffers[device],
            SliceRoom.of(plan.used if plan is not None else 0, self._sizes[device]),
            self._streams,
            self._laid_out,
        )

    def _staged(self, copies: tuple[TableCopy, ...], host: Mapping[int, Tensor], plans: Sequence[_Plan]) -> Staged:
        parts: list[StagedPart] = []
        state: dict[int, Tensor] = {}
        for plan in plans:
            buffer = self._buffers[plan.device]
            if plan.state is not None:
                state |= plan.state.copy()
            parts.append(stage_part(plan.tables, buffer, self._streams, self._writers[plan.device]))
        done = {each.copy.index for plan in plans for each in plan.tables}
        return Staged(
            part=StagedPart(
                tables=tuple([table for part in parts for table in part.tables]),
                tallied=tuple([mark for part in parts for mark in part.tallied]),
                state=state,
            ),
            rest=tuple([copy for copy in copies if copy.index not in done]),
            host={number: tensor.clone() for number, tensor in host.items()},
            part_bytes=sum([plan.used for plan in plans]),
        )

    def _laid_out(self, copy: TableCopy, columns: Encodable, at: int) -> BoundLayout | None:
        return self._layouts.of(copy, columns, at, escapes=self._escapes.get(copy.index, 0))

    def _is_staged(self, copy: TableCopy) -> bool:
        return bool(copy.tensors) and all(self._streams.covers(tensor) for tensor in copy.tensors)


def _devices_of(copies: Sequence[TableCopy]) -> list[torch.device]:
    return list(dict.fromkeys(copy.tensors[0].device for copy in copies))
