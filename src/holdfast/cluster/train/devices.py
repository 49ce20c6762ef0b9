"""Between the host's arrays and the device that a worker trains on."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
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


def host_tensors(arrays: NDArray[Any] | Sequence[NDArray[Any]]) -> list[Tensor]:
    """The arrays themselves, not copies: do not write to them."""
    listed = [arrays] if isinstance(arrays, np.ndarray) else arrays
    return [torch.from_numpy(np.ascontiguousarray(each)) for each in listed]


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """An array on a device. On a CPU it is the array itself, not a copy: do not write to it."""
    (tensor,) = host_tensors(array)
    if device.type == "cpu":
        return tensor
    return pinned(tensor.shape, tensor.dtype, device).copy_(tensor).to(device, non_blocking=True)


def pinned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory of the host that a device reads and writes by itself. Torch keeps it, and gives it out again."""
    if device.type != "cuda":
        raise ConfigurationError(f"workers train on a CPU or on a CUDA device, not on {device.type}")
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


def to_host(tensor: Tensor) -> NDArray[Any]:
    """The tensor as an array. On a CPU they share memory."""
    if tensor.device.type == "cpu":
        return tensor.detach().contiguous().numpy()
    target = pinned(tensor.shape, tensor.dtype, tensor.device)
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
            self._copies = [
                pinned(each.shape, each.dtype, each.device).copy_(each, non_blocking=True) for each in self._copies
            ]

    def arrays(self) -> list[NDArray[Any]]:
        """Wait for them."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return [each.numpy() for each in self._copies]


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
