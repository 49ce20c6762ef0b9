"""At most how many rows a set on a device holds, without waiting for the device.

Every id that is added may be a new one, so their number is a bound. It grows past the truth as rows come again, so the
set is counted now and then, on the device; the count comes across when it is ready, and what was added since the device
was asked is all that has to be added to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from holdfast.kernels.bit_sets import tensors as sets

_LEAST_NEWS = 2**16  # ids, before a set is counted again
_NEWS_SHARE = 16  # or, if that is more, one part in so many of what it held


class LateNumber(Protocol):
    """A number that a device is working out."""

    def found(self) -> int | None:
        """The number; None if it has not come across yet. Never waits."""
        ...


CountLater = Callable[[Tensor, int], LateNumber]  # the rows of a set, given as bits, of so many rows


class CudaNumber:
    """See ``LateNumber``: a number that was queued on the current stream of a GPU.

    It crosses on another one: on its own, the next kernel would wait for it behind whatever else crosses the link.
    """

    __slots__ = ("_event", "_here")

    def __init__(self, there: Tensor) -> None:
        stream = _stream(there.device)
        stream.wait_stream(torch.cuda.current_stream(there.device))
        self._here = torch.empty(1, dtype=torch.int64, pin_memory=True)
        with torch.cuda.stream(stream):
            self._here.copy_(there, non_blocking=True)
        there.record_stream(stream)
        self._event = torch.cuda.Event()
        self._event.record(stream)

    def found(self) -> int | None:
        """The number, once it is here."""
        return int(self._here) if self._event.query() else None


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def count_on_gpu(bits: Tensor, rows: int) -> LateNumber:
    """Count a set where it is."""
    return CudaNumber(sets.count_later(bits, 0, rows))


class SetBound:
    """The bound of one set over ``rows`` rows."""

    __slots__ = ("_asked", "_before", "_captured", "_count", "_known", "_rows", "_since")

    def __init__(self, rows: int, count: CountLater = count_on_gpu) -> None:
        self._rows = rows
        self._count = count
        self._known = 0  # rows that were counted
        self._before = 0  # ids added between that and the count under way
        self._since = 0  # ids added after the last count, or the one under way
        self._asked: LateNumber | None = None
        self._captured = False  # a CUDA graph adds rows, whose replays nobody sees

    @property
    def most(self) -> int:
        """No more rows than this are in the set."""
        if self._captured:
            return self._rows
        self._hear()
        return min(self._rows, self._known + self._before + self._since)

    def grow(self, bits: Tensor, ids: int) -> None:
        """So many ids, known or not, were added to the set, whose bits these are."""
        if self._captured or (bits.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._captured = True
            return
        self._since += ids
        self._hear()
        if self._asked is None and self._since > max(_LEAST_NEWS, self._known // _NEWS_SHARE):
            self._asked = self._count(bits, self._rows)
            self._before, self._since = self._since, 0

    def clear(self) -> None:
        """The set was emptied."""
        self._known = self._before = self._since = 0
        self._asked = None

    def _hear(self) -> None:
        if self._asked is not None and (found := self._asked.found()) is not None:
            self._known, self._before, self._asked = found, 0, None
