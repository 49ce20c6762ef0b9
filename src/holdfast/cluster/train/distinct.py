"""Distinct: the different numbers of a tensor, ascending, and which of them each one is.

``torch.unique`` makes the host wait for the device, because its result has as many numbers as it finds. Here the device
writes them into a tensor of the largest size, and how many there are behind them; both are copied to the host while it
does something else, and it waits only if it asks too early.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.cluster.train.devices import pinned, to_host


class Found(NamedTuple):
    """The different numbers, on their device and on the host, and the place of each number among them."""

    numbers: Tensor
    on_host: NDArray[np.int64]
    places: Tensor


class _Padded(NamedTuple):
    numbers: Tensor  # the different ones, whatever was there before, and in the last place how many there are but one
    places: Tensor


class Distinct:
    """What is different in some numbers; found while the host goes on, where a GPU has them.

    Args:
        numbers: One dimension, int64.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._given = numbers
        self._padded: _Padded | None = None
        if numbers.is_cuda and len(numbers):
            self._padded = padded(numbers)
            self._host = pinned((len(numbers) + 1,), torch.int64, numbers.device)
            self._host.copy_(self._padded.numbers, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(numbers.device))

    def found(self) -> Found:
        """Waits for the device, if it is not there yet."""
        if self._padded is None:
            numbers, places = torch.unique(self._given, return_inverse=True)
            return Found(numbers, to_host(numbers), places)
        self._copied.synchronize()
        on_host: NDArray[Any] = self._host.numpy()
        count = int(on_host[-1]) + 1
        return Found(self._padded.numbers[:count], on_host[:count], self._padded.places)


def padded(numbers: Tensor) -> _Padded:
    """The different numbers and their places, without a tensor whose size depends on them; at least one is given."""
    ordered, order = numbers.sort()
    ranks = torch.zeros_like(order)
    torch.cumsum(ordered[1:] != ordered[:-1], 0, out=ranks[1:])
    different = ordered.new_empty(len(numbers) + 1)
    different[:-1].scatter_(0, ranks, ordered)  # equal numbers write the same
    different[-1:] = ranks[-1:]
    return _Padded(different, torch.empty_like(order).scatter_(0, order, ranks))
