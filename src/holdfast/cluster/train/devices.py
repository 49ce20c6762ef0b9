"""Between the host's arrays and the device that a worker trains on."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

with warnings.catch_warnings():  # torch says once per process that an array is read-only; nothing here writes to one
    warnings.simplefilter("ignore")
    _read_only = np.zeros(1, np.float32)
    _read_only.flags.writeable = False
    torch.from_numpy(_read_only)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on a device. On a CPU it is the array itself, not a copy: do not write to it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return _pinned(tensor).to(device, non_blocking=True)


def to_host(tensor: Tensor) -> NDArray[Any]:
    """The tensor as an array. On a CPU they share memory."""
    if tensor.device.type == "cpu":
        return tensor.detach().contiguous().numpy()
    target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    target.copy_(tensor.detach())  # waits for the device
    return target.numpy()


def on_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on a device: in mappings, lists, tuples, dataclasses, and what has ``to()``."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch if batch.device == device else _pinned(batch).to(device, non_blocking=True)
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


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if torch.cuda.is_available() and not tensor.is_pinned() else tensor
