"""Copies rows of tensors into packed ones: scattered rows, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

_THREAD_BYTES = 4 * 2**20  # a thread more for each: for less, waking it up, where others are at work, costs more
_STREAMED_BYTES = 16 * 2**20  # copies of so much go past the caches: those of less took as long with them or longer


class Copy(NamedTuple):
    """A source that shall fill a target of its type and shape."""

    target: Tensor
    source: Tensor


class Gather(NamedTuple):
    """Rows ``ids`` of the source (int64, all of them there) that shall fill the target."""

    target: Tensor
    source: Tensor
    ids: Tensor


def copy_tensors(copies: Sequence[Copy]) -> None:
    """Copy all of them, on a CPU with as many threads as torch uses; those of a GPU are only queued."""
    kernels = _kernels()
    size = sum(source.nbytes for _, source in copies)
    pieces = []
    for target, source in copies:
        if kernels is not None and size >= _STREAMED_BYTES and _are_alike(target, source):
            pieces.append((target.data_ptr(), source.data_ptr(), source.nbytes))
        else:
            target.copy_(source, non_blocking=True)
    if kernels is not None and pieces:
        kernels.copy(pieces, _threads(size))


def gather_rows(gathers: Sequence[Gather]) -> None:
    """Gather all of them, on a CPU with as many threads as torch uses; those on a GPU are only queued."""
    kernels = _kernels()
    lines = []
    for gather in gathers:
        target, source, ids = gather
        if not source.is_cpu:
            target.copy_(source.index_select(0, ids), non_blocking=True)
        elif kernels is not None and (width := _packed_width(gather)) and width % kernels.word_bytes == 0:
            lines.append((target.data_ptr(), source.data_ptr(), ids.data_ptr(), width, ids.shape[0]))
        else:
            torch.index_select(source, 0, ids, out=target)
    if kernels is not None and lines:
        size = sum(width * rows for *_, width, rows in lines)
        kernels.gather(lines, _threads(size), streams=size >= _STREAMED_BYTES)


def warm_up() -> None:
    """Compile or load what copies on a CPU now, so that no save waits for it."""
    _kernels()


def _threads(size_bytes: int) -> int:
    return min(torch.get_num_threads(), 1 + size_bytes // _THREAD_BYTES)


def _are_alike(target: Tensor, source: Tensor) -> bool:
    """Whether the bytes of one, in their order, are those of the other."""
    on_cpu, packed = target.is_cpu and source.is_cpu, target.is_contiguous() and source.is_contiguous()
    return on_cpu and packed and target.dtype is source.dtype and target.shape == source.shape


def _packed_width(gather: Gather) -> int:
    """Bytes of a row where no tensor has gaps, or 0."""
    packed = all(tensor.is_contiguous() for tensor in gather)
    return gather.source.stride(0) * gather.source.itemsize if packed and gather.source.numel() else 0


class _Kernels(NamedTuple):
    """What runs on the threads of torch."""

    copy: Callable[[Sequence[tuple[int, int, int]], int], None]
    gather: Callable[..., None]
    word_bytes: int  # of which rows must be made


@cache
def _kernels() -> _Kernels | None:
    try:
        from holdfast.kernels import bulk, gather
    except (ImportError, AttributeError):  # no Numba, one that does not fit this NumPy, or no OpenMP that can be asked
        return None
    return _Kernels(copy=bulk.copy, gather=gather.gather, word_bytes=gather.WORD_BYTES)
