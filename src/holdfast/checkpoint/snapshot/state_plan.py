"""Where the tensors of the state go that training may change: into the buffers of their devices, or aside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import aligned
from holdfast.checkpoint.snapshot.side_streams import SideStreams
from holdfast.checkpoint.snapshot.tensor_filler import bytes_of


class DeviceState:
    """State tensors on one device, and their places in its buffer, from its beginning on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.used = 0
        self._sources: list[Tensor] = []
        self._targets: dict[int, Tensor] = {}

    def add(self, number: int, raw: Tensor, buffer: Tensor | None) -> None:
        """A tensor, as bytes; what does not fit the buffer has a size only."""
        size = raw.numel()
        self._sources.append(raw)
        if buffer is not None and self.used + size <= len(buffer):
            self._targets[number] = buffer[self.used : self.used + size]
        self.used += aligned(size)

    def copy(self) -> dict[int, Tensor]:
        """Queue the copies, for all of which there is room; where they go, by the tensors' numbers."""
        torch._foreach_copy_(list(self._targets.values()), self._sources)
        return self._targets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatePlan:
    """What is copied on devices, and ``host``, which is elsewhere."""

    tensors: dict[int, Tensor]
    devices: tuple[DeviceState, ...]
    host: dict[int, Tensor]


class StatePlans:
    """Plans save after save. The same tensors lie where they lay: their plan is that of the last save."""

    def __init__(self, streams: SideStreams) -> None:
        self._streams = streams
        self._last: StatePlan | None = None

    def of(self, state: dict[int, Tensor], buffers: Mapping[torch.device, Tensor]) -> StatePlan:
        """Where these tensors go, which go by their numbers. ``buffers`` are always the same."""
        last = self._last
        if last is None or not _are_same(state, last.tensors):
            plan, is_lasting = self._new(state, buffers)
            self._last = plan if is_lasting else None
            return plan
        return last

    def _new(self, state: dict[int, Tensor], buffers: Mapping[torch.device, Tensor]) -> tuple[StatePlan, bool]:
        """Also whether it is good for the same tensors later: bytes of what is not contiguous are a copy of now."""
        devices: dict[torch.device, DeviceState] = {}
        host: dict[int, Tensor] = {}
        is_lasting = True
        for number, tensor in state.items():
            if self._streams.covers(tensor):
                own = devices.setdefault(tensor.device, DeviceState(tensor.device))
                own.add(number, bytes_of(tensor), buffers.get(tensor.device))
                is_lasting = is_lasting and tensor.is_contiguous()
            else:
                host[number] = tensor
        return StatePlan(tensors=state, devices=tuple(devices.values()), host=host), is_lasting


def _are_same(now: Mapping[int, Tensor], before: Mapping[int, Tensor]) -> bool:
    return now.keys() == before.keys() and all(map(is_, now.values(), before.values()))
