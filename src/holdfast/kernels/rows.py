"""Copies scattered rows of tensors into packed ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
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
