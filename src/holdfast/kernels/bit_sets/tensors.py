"""Sets of rows as tensors: on a CPU by the functions for arrays, elsewhere by Triton or plain torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.errors import ConfigurationError
from holdfast.kernels.bit_sets.arrays import check_range, host_kernels, set_bytes
from holdfast.kernels.devices import triton_works

__all__ = [
    "clear",
    "count",
    "count_later",
    "list_bounded",
    "list_ids",
    "mark",
    "mark_nonzero_rows",
    "marker",
    "merge",
    "new_set",
    "set_bytes",
    "warm_up",
]

_HostMark: TypeAlias = Callable[[NDArray[np.uint8], NDArray[Any], int], int]
_DeviceMark: TypeAlias = Callable[[Tensor, Tensor, int], None]


def new_set(rows: int, device: torch.device | str = "cpu") -> Tensor:
    """An empty set."""
    return torch.zeros(set_bytes(rows), dtype=torch.uint8, device=device)


def mark(bits: Tensor, ids: Tensor, rows: int) -> None:
    """Add ``ids`` (integers of any shape, in any order, repeated or not) to a set over ``rows`` rows.

    On a CPU an id outside ``[0, rows)`` raises ConfigurationError; elsewhere that check would wait for the device.
    """
    marker(bits, rows)(ids)


def marker(bits: Tensor, rows: int) -> Callable[[Tensor], None]:
    """``mark`` for one set, with all that stays the same looked up once: it runs for every table in every step."""
    if not bits.is_cpu:
        return _device_marker(_device_kernels(bits.device.type).mark, bits, rows)
    return _host_marker(host_kernels().mark, bits.numpy(), rows)


def mark_nonzero_rows(bits: Tensor, values: Tensor) -> None:
    """Add every row of ``values`` that has a bit set anywhere: a NaN and -0.0 count, +0.0 does not."""
    if values.numel() == 0:
        return
    patterns = _bit_patterns(values)
    if bits.is_cpu:
        host_kernels().mark_nonzero_rows(bits.numpy(), patterns.numpy())
    else:
        _device_kernels(bits.device.type).mark_nonzero_rows(bits, patterns)


def list_ids(bits: Tensor, start: int, stop: int) -> Tensor:
    """The set's rows in ``[start, stop)``, ascending, as int64 on the set's device."""
    check_range(bits.numel(), start, stop)
    if bits.is_cpu:
        return torch.from_numpy(host_kernels().list_ids(bits.numpy(), start, stop))
    return _device_kernels(bits.device.type).list_ids(bits, start, stop)


def count(bits: Tensor, start: int, stop: int) -> int:
    """How many rows of ``[start, stop)`` are in the set."""
    check_range(bits.numel(), start, stop)
    if bits.is_cpu:
        return host_kernels().count(bits.numpy(), start, stop)
    return _device_kernels(bits.device.type).count(bits, start, stop)


def list_bounded(bits: Tensor, start: int, stop: int, *, bound: int, fill: int) -> tuple[Tensor, Tensor]:
    """``list_ids`` without waiting for the device: room for ``bound`` ids, ``fill`` where there are none.

    The second tensor is how many rows there are in all, one number (int64); those beyond the bound are left out.
    """
    check_range(bits.numel(), start, stop)
    if start == stop:
        return torch.full((bound,), fill, device=bits.device), torch.zeros(1, dtype=torch.int64, device=bits.device)
    return _bounded_kernels(bits.device.type).list_bounded(bits, start, stop, bound, fill)


def count_later(bits: Tensor, start: int, stop: int) -> Tensor:
    """``count`` without waiting for the device: one number (int64) on it."""
    check_range(bits.numel(), start, stop)
    return _bounded_kernels(bits.device.type).count_later(bits, start, stop)


def merge(into: Tensor, other: Tensor) -> None:
    """Add the rows of ``other``."""
    into.view(torch.int64).bitwise_or_(other.view(torch.int64))


def clear(bits: Tensor) -> None:
    """Remove every row."""
    bits.zero_()


def warm_up(device: torch.device | str = "cpu") -> None:
    """Compile or load this device's kernels now, so that no training step waits for it."""
    bits = new_set(64, device)
    for dtype in (torch.int32, torch.int64):
        mark(bits, torch.zeros(1, dtype=dtype, device=device), 64)
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        mark_nonzero_rows(bits, torch.zeros(64, 1, dtype=dtype, device=device))
    list_ids(bits, 0, 64)
    if not bits.is_cpu:
        list_bounded(bits, 0, 64, bound=1, fill=0)


def _host_marker(kernel: _HostMark, bits: NDArray[np.uint8], rows: int) -> Callable[[Tensor], None]:
    def add(ids: Tensor) -> None:
        array = _index(ids).numpy().ravel()  # contiguous
        outside = kernel(bits, array, rows)
        if outside >= 0:
            raise ConfigurationError(f"row {array[outside]} is outside a table of {rows} rows")

    return add


def _device_marker(kernel: _DeviceMark, bits: Tensor, rows: int) -> Callable[[Tensor], None]:
    def add(ids: Tensor) -> None:
        kernel(bits, _index(ids).reshape(-1).contiguous(), rows)

    return add


def _index(ids: Tensor) -> Tensor:
    return ids if ids.dtype is torch.int64 or ids.dtype is torch.int32 else ids.to(torch.int64)


class _DeviceKernels(Protocol):
    def mark(self, bits: Tensor, ids: Tensor, rows: int, /) -> None: ...
    def mark_nonzero_rows(self, bits: Tensor, patterns: Tensor, /) -> None: ...
    def list_ids(self, bits: Tensor, start: int, stop: int, /) -> Tensor: ...
    def count(self, bits: Tensor, start: int, stop: int, /) -> int: ...
    def list_bounded(self, bits: Tensor, start: int, stop: int, bound: int, fill: int, /) -> tuple[Tensor, Tensor]: ...
    def count_later(self, bits: Tensor, start: int, stop: int, /) -> Tensor: ...


@cache
def _device_kernels(device_type: str) -> _DeviceKernels:
    if device_type == "cuda" and triton_works():
        from holdfast.kernels.bit_sets import gpu

        return cast(_DeviceKernels, gpu)
    from holdfast.kernels.bit_sets import portable

    return cast(_DeviceKernels, portable)


def _bounded_kernels(device_type: str) -> _DeviceKernels:
    """Those that wait for nothing; hosts, where nothing has to be waited for, have them for what is tested there."""
    if device_type != "cpu":
        return _device_kernels(device_type)
    from holdfast.kernels.bit_sets import portable

    return cast(_DeviceKernels, portable)


def _bit_patterns(values: Tensor) -> Tensor:
    """The rows as integers, the widest that fit."""
    rows = values.detach().contiguous().view(values.shape[0], -1)
    if rows.dtype is torch.bool:
        rows = rows.view(torch.uint8)
    row_bytes = rows.shape[1] * rows.itemsize
    offset_bytes = rows.storage_offset() * rows.itemsize
    for dtype in (torch.int64, torch.int32, torch.int16):
        if row_bytes % dtype.itemsize == 0 and offset_bytes % dtype.itemsize == 0:
            return rows.view(dtype)
    return rows.view(torch.uint8)
