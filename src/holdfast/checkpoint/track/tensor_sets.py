"""Sets of rows as tensors, on the device of their table."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.checkpoint.track.row_sets import Marks
from holdfast.checkpoint.track.set_bound import SetBound
from holdfast.kernels.bit_sets import tensors as sets


class TensorSets:
    """See ``SetKind``."""

    __slots__ = ("_device",)

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new_set(self, rows: int, /) -> Tensor:
        """An empty set."""
        return sets.new_set(rows, self._device)

    def marker(self, bits: Tensor, rows: int, /) -> Callable[[Tensor], None]:
        """Adds ids to a set."""
        return sets.marker(bits, rows)

    def mark_nonzero_rows(self, bits: Tensor, values: Tensor, /) -> None:
        """Add rows that have a bit set."""
        sets.mark_nonzero_rows(bits, values)

    def merge(self, into: Tensor, other: Tensor, /) -> None:
        """Add the rows of another set."""
        sets.merge(into, other)

    def clear(self, bits: Tensor, /) -> None:
        """Remove every row."""
        sets.clear(bits)

    def cut(self, bits: Tensor, start: int, stop: int, /) -> Tensor:
        """Some bytes of a set."""
        return bits[start:stop].clone()

    def list_ids(self, bits: Tensor, start: int, stop: int, /, *, offset: int = 0) -> Tensor:
        """The rows of a range."""
        ids = sets.list_ids(bits, start, stop)
        return ids.add_(offset) if offset else ids

    def count(self, bits: Tensor, start: int, stop: int, /) -> int:
        """How many these are."""
        return sets.count(bits, start, stop)

    def ids(self, start: int, stop: int, /) -> Tensor:
        """All ids of a range."""
        return torch.arange(start, stop, dtype=torch.int64, device=self._device)

    def size(self, ids: Tensor, /) -> int:
        """How many ids these are."""
        return ids.numel()

    def bound(self, rows: int, /) -> SetBound | None:
        """Bounds a set on a GPU."""
        return SetBound(rows) if self._device.type == "cuda" else None


def tensor_marks(rows: int, device: torch.device) -> Marks[Tensor]:
    """The marks of a table on this device."""
    return Marks(rows, TensorSets(device))
