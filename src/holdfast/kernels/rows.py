"""Copies scattered rows of tensors into packed ones, and packed ones back to their places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_THREAD_BYTES = 4 * 2**20  # a thread more for each: for less, waking it up, where others are at work, costs more


class Gather(NamedTuple):
    """Rows ``ids`` of the source (int64, all of them there) that shall fill the target."""

    target: Tensor
    source: Tensor
    ids: Tensor


def gather_rows(gathers: Sequence[Gather]) -> None:
    """Gather all of them, on a CPU with as many threads as torch uses; those on a GPU are only queued."""
    kernels = _kernels()
    lines = []
    for gather in gathers:
        target, source, ids = gather
        if not source.is_cpu:
            target.copy_(source.index_select(0, ids), non_blocking=True)
        elif kernels is not None and (width := _packed_width(gather)) and width % kernels.LINE_BYTES == 0:
            lines.append((target.data_ptr(), source.data_ptr(), ids.data_ptr(), width, len(ids)))
        else:
            torch.index_select(source, 0, ids, out=target)
    if kernels is not None and lines:
        size = sum(width * rows for *_, width, rows in lines)
        kernels.gather(lines, min(torch.get_num_threads(), 1 + size // _THREAD_BYTES))


class RowScatter:
    """Copies packed rows to where they belong in one tensor: on one thread, without the GIL.

    For threads of the caller's own; ``into`` gives None where the tensor is not of the kind, or without Numba.
    """

    def __init__(self, target: Tensor, kernels: ModuleType) -> None:
        self._target = target
        self._kernels = kernels
        self.address = target.data_ptr()  # of the tensor's first byte
        self.width = target.nbytes // len(target)  # bytes of a row

    @classmethod
    def into(cls, target: Tensor) -> RowScatter | None:
        """For tensors of this process's memory whose rows are whole 64-bit words."""
        kernels = _scatter_kernels()
        if kernels is None or not target.is_cpu or not target.is_contiguous() or not target.numel():
            return None
        found = cls(target, kernels)
        return None if found.width % 8 or found.address % 8 else found

    @cached_property
    def _words(self) -> NDArray[np.uint64]:
        target = self._target
        return target.detach().view(len(target), -1).view(torch.int64).numpy().view(np.uint64)

    def __call__(self, rows: memoryview, ids: NDArray[np.int64], chosen: NDArray[np.bool_] | None = None) -> None:
        """Copy the ``i``-th row to row ``ids[i]``, where ``chosen[i]``. Ids outside the tensor raise IndexError."""
        if int(ids.min()) < 0 or int(ids.max()) >= len(self._words):
            raise IndexError(f"rows {ids.min()} to {ids.max()} are not all in a table of {len(self._words)} rows")
        source = np.frombuffer(bytearray(rows) if rows.readonly else rows, dtype=np.uint64).reshape(len(ids), -1)
        if chosen is None:
            self._kernels.scatter_words(self._words, source, ids)
        else:
            self._kernels.scatter_chosen_words(self._words, source, ids, chosen)


def warm_up() -> None:
    """Compile or load the CPU gather now, so that no save waits for it."""
    _kernels()


def _packed_width(gather: Gather) -> int:
    """Bytes of a row where no tensor has gaps, or 0."""
    packed = all(tensor.is_contiguous() for tensor in gather)
    return gather.source.stride(0) * gather.source.itemsize if packed and gather.source.numel() else 0


@cache
def _kernels() -> ModuleType | None:
    try:
        from holdfast.kernels import gather
    except (ImportError, AttributeError):  # no Numba, one that does not fit this NumPy, or no OpenMP that can be asked
        return None
    return gather


@cache
def _scatter_kernels() -> ModuleType | None:
    try:
        from holdfast.kernels import scatter
    except ImportError:
        return None
    return scatter
