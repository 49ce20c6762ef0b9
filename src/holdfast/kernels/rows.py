"""Copies scattered rows of tensors into packed ones, and packed ones to where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Gather(NamedTuple):
    """Rows ``ids`` of the source (int64, all of them there) that shall fill the target."""

    target: Tensor
    source: Tensor
    ids: Tensor


def gather_rows(gathers: Sequence[Gather]) -> None:
    """Do all of them, on a CPU with as many threads as torch uses; those on a GPU are only queued."""
    kernels = _kernels()
    lines = []
    for gather in gathers:
        target, source, ids = gather
        if not source.is_cpu:
            target.copy_(source.index_select(0, ids), non_blocking=True)
        elif kernels is not None and (width := _packed_width(gather)) and width % kernels.LINE == 0:
            lines.append((target.data_ptr(), source.data_ptr(), ids.data_ptr(), width, len(ids)))
        else:
            torch.index_select(source, 0, ids, out=target)
    if kernels is not None and lines:
        kernels.gather(lines, torch.get_num_threads())


def scatter_rows(target: Tensor, rows: Tensor, ids: Tensor, chosen: Tensor | None = None) -> None:
    """Copy ``rows[i]`` to row ``ids[i]`` (int64) of the target where ``chosen[i]``; types and devices may differ.

    On one thread, without the GIL: a restore has threads of its own. Ids outside the target raise IndexError.
    """
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(target)):
        raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} are not all in a table of {len(target)} rows")
    words = _words(target, rows)
    if words is None:
        if chosen is not None:
            rows, ids = rows[chosen], ids[chosen]
        target.index_copy_(0, ids.to(target.device), rows.to(device=target.device, dtype=target.dtype))
        return
    kernels, to, source = words
    if chosen is None:
        kernels.scatter_words(to, source, ids.numpy())
    else:
        kernels.scatter_chosen_words(to, source, ids.numpy(), chosen.numpy())


def _words(target: Tensor, rows: Tensor) -> tuple[ModuleType, NDArray[np.uint64], NDArray[np.uint64]] | None:
    """Both as 64-bit words, with the kernels for them; None where they do not fit or there are none."""
    plain = target.is_cpu and rows.is_cpu and target.dtype == rows.dtype and rows.numel() > 0
    if not plain or not target.is_contiguous() or not rows.is_contiguous() or (kernels := _scatter_kernels()) is None:
        return None
    if (rows.nbytes // len(rows)) % 8 or target.data_ptr() % 8 or rows.data_ptr() % 8:
        return None
    to, source = (t.detach().view(len(t), -1).view(torch.int64).numpy().view(np.uint64) for t in (target, rows))
    return kernels, to, source


def warm_up() -> None:
    """Compile or load now what a gather on a CPU needs, so that no save waits for it."""
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
        from holdfast.kernels import cpu
    except ImportError:
        return None
    return cpu
