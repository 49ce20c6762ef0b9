"""Between the host's arrays and the device that a worker trains on."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import ConfigurationError

with warnings.catch_warnings():  # torch says once per process that an array is read-only; nothing here writes to one
    warnings.simplefilter("ignore")
    _read_only = np.zeros(1, np.float32)
    _read_only.flags.writeable = False
    torch.from_numpy(_read_only)


def to_device(arrays: NDArray[Any] | Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Arrays on a device, joined there. On a CPU they are the arrays themselves, not copies: do not write to them."""
    listed = [arrays] if isinstance(arrays, np.ndarray) else arrays
    tensors = [torch.from_numpy(np.ascontiguousarray(each)) for each in listed]
    if device.type == "cpu":
        return tensors
    return [_staging(device.type, tensors[0].dtype).move(tensors, device)]


def to_host(tensor: Tensor) -> NDArray[Any]:
    """The tensor as an array. On a CPU they share memory."""
    if tensor.device.type == "cpu":
        return tensor.detach().contiguous().numpy()
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    target.copy_(tensor.detach())  # waits for the device
    return target.numpy()


class HostCopies:
    """Copies of tensors that are on their way to the host; the device computes on meanwhile.

    Args:
        tensors: Of one device. On a CPU the arrays share their memory.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._device = tensors[0].device
        self._copies = [each.detach().contiguous() for each in tensors]
        if self._device.type == "cuda":
            self._copies = [_pinned(each) for each in self._copies]

    def arrays(self) -> list[NDArray[Any]]:
        """Wait for them."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return [each.numpy() for each in self._copies]


def _pinned(tensor: Tensor) -> Tensor:
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return target.copy_(tensor, non_blocking=True)


def on_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on a device: in mappings, lists, tuples, dataclasses, and what has ``to()``."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=batch.is_pinned())
    if isinstance(batch, Mapping):
        return type(batch)({key: on_device(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(on_device(value, device) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = (each.name for each in dataclasses.fields(batch) if each.init)
        return dataclasses.replace(batch, **{name: on_device(getattr(batch, name), device) for name in fields})
    return batch.to(device) if callable(getattr(batch, "to", None)) else batch


class _Staging:
    """Pinned memory that arrays pass through on their way to a device: two in turn, as allocating it is slow."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._next = 0
        self._buffers = [torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype)]
        self._passed: list[torch.cuda.Event | None] = [None, None]

    def move(self, tensors: Sequence[Tensor], device: torch.device) -> Tensor:
        """A copy on the device, of all one after another; they may change as soon as this returns."""
        turn, self._next = self._next, 1 - self._next
        if (passed := self._passed[turn]) is not None:
            passed.synchronize()
        values = sum(each.numel() for each in tensors)
        if self._buffers[turn].numel() < values:
            self._buffers[turn] = torch.empty(values * 5 // 4, dtype=self._dtype, pin_memory=True)
        part = self._buffers[turn][:values].view(-1, *tensors[0].shape[1:])
        torch.cat(list(tensors), out=part)
        moved = part.to(device, non_blocking=True)
        event = self._passed[turn] = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return moved


@cache
def _staging(kind: str, dtype: torch.dtype) -> _Staging:
    if kind != "cuda":
        raise ConfigurationError(f"workers train on a CPU or on a CUDA device, not on {kind}")
    return _Staging(dtype)
