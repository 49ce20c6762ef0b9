"""Transfer: arrays on their way from the host to the device that a worker trains on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.cluster.train.devices import host_tensors, pinned


class Transfer:
    """Arrays that another thread moves into memory that a GPU reads, while this one prepares what comes after them.

    What servers sent lies in memory of the network's, and a step has several megabytes of it: to copy them is work for
    a processor, and needs nothing of Python. For a CPU there is nothing to move.

    Args:
        arrays: Of one type and width; they must not change any more.
        device: Where to.
    """

    def __init__(self, arrays: NDArray[Any] | Sequence[NDArray[Any]], device: torch.device) -> None:
        self._device = device
        self._tensors = host_tensors(arrays)
        self.values = sum(each.numel() for each in self._tensors)
        self._copying: Future[Any] | None = None
        if device.type != "cpu":
            joined = pinned((sum(map(len, self._tensors)), *self._tensors[0].shape[1:]), self._tensors[0].dtype, device)
            self._copying = _copier().submit(join, [each.numpy() for each in self._tensors], joined.numpy())
            self._tensors = [joined]

    def tensor(self) -> Tensor:
        """All of them one after another, on the device; do not write to it."""
        tensors = self._copied()
        joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        return joined.to(self._device, non_blocking=True)

    def fill(self, target: Tensor) -> None:
        """The same, in a tensor of the device that is there already."""
        tensors = self._copied()
        if len(tensors) == 1:
            target.copy_(tensors[0], non_blocking=True)
        else:
            torch.cat(tensors, out=target)

    def _copied(self) -> list[Tensor]:
        if self._copying is not None:
            self._copying.result()
        return self._tensors


def join(arrays: Sequence[NDArray[Any]], target: NDArray[Any]) -> None:
    """Arrays one after another, past the caches where that can be: no processor reads them again, but a device.

    Args:
        arrays: Of one type and width, each contiguous.
        target: Memory for all of them.
    """
    if (copy := _past_caches()) is None:
        np.concatenate(arrays, out=target)
        return
    at, pieces = target.ctypes.data, []
    for each in arrays:
        pieces.append((at, each.ctypes.data, each.nbytes))
        at += each.nbytes
    copy(pieces)


@cache
def _past_caches() -> Callable[[Sequence[tuple[int, int, int]]], None] | None:
    try:
        from holdfast.kernels import bulk
    except (ImportError, AttributeError):  # no Numba, or a torch with other threads
        return None
    return bulk.copy_alone


@cache
def _copier() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "holdfast-copier")
