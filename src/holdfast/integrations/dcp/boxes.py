"""Copies boxes of stored pieces into tensors: straight where their bytes lie one after another, otherwise in slabs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.read.crew import Task
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.format.dtypes import itemsize, torch_dtype
from holdfast.integrations.dcp.stored import Key, StoredPiece, StoredSection

_SLAB_BYTES = 8 << 20  # read at a time where bytes must be rearranged


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxCopy:
    """The box of a stored piece that begins at ``offsets`` in it and is as large as the tensor that it goes to."""

    key: Key
    offsets: tuple[int, ...]
    target: Tensor


def narrowed(source: Tensor, offsets: Sequence[int], lengths: Sequence[int]) -> Tensor:
    """A box of a tensor."""
    for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        source = source.narrow(dimension, offset, length)
    return source


def flat_bytes(target: Tensor, dtype: str) -> NDArray[np.uint8] | None:
    """The memory of a tensor, if stored bytes can be read into it as they are."""
    fits = target.is_cpu and target.dtype == torch_dtype(dtype) and target.is_contiguous()
    return target.reshape(-1).view(torch.uint8).numpy() if fits else None


def box_tasks(fetcher: Fetcher, piece: StoredPiece, copy: BoxCopy) -> list[Task]:
    """What to do for a copy; the tasks may run at the same time."""
    shape, lengths = piece.spec.shape, tuple(copy.target.shape)
    if not math.prod(lengths):
        return []
    first = _first_byte(piece, copy.offsets)
    target = flat_bytes(copy.target, piece.spec.dtype) if _in_one_row(shape, lengths) else None
    if target is not None:
        return [
            partial(_read_into, fetcher, section, low, high, target[at : at + high - low])
            for section, low, high, at in _overlaps(piece.sections, first, first + len(target))
        ]
    return [partial(_copy_slab, fetcher, piece, copy, low, high) for low, high in _slabs(piece, lengths)]


def _in_one_row(shape: Sequence[int], lengths: Sequence[int]) -> bool:
    """Whether the elements of a box lie one after another in a tensor of this shape."""
    wide = next((at for at, length in enumerate(lengths) if length != 1), len(lengths))
    return tuple(lengths[wide + 1 :]) == tuple(shape[wide + 1 :])


def _first_byte(piece: StoredPiece, offsets: Sequence[int]) -> int:
    shape, element = piece.spec.shape, 0
    for offset, length in zip(offsets, shape, strict=True):
        element = element * length + offset
    return element * itemsize(piece.spec.dtype)


def _overlaps(
    sections: Sequence[StoredSection], start: int, stop: int
) -> Iterator[tuple[StoredSection, int, int, int]]:
    """The sections that hold these bytes: which of theirs, and where they go."""
    for section in sections:
        low, high = max(start, section.start), min(stop, section.start + section.length)
        if low < high:
            yield section, low - section.start, high - section.start, low - start


def _read_into(fetcher: Fetcher, section: StoredSection, low: int, high: int, target: NDArray[np.uint8]) -> int:
    is_whole = high - low == section.place.length
    memory = (lambda _: target.data) if is_whole else None
    data = np.frombuffer(fetcher.chunk(section.bundle, section.place, low, high, memory=memory), np.uint8)
    if not np.may_share_memory(data, target):
        np.copyto(target, data)
    return high - low


def _slabs(piece: StoredPiece, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """The box in pieces along its first dimension."""
    if not lengths:
        return [(0, 1)]
    row_bytes = math.prod(piece.spec.shape[1:]) * itemsize(piece.spec.dtype)
    rows = max(1, _SLAB_BYTES // max(1, row_bytes))
    return [(low, min(low + rows, lengths[0])) for low in range(0, lengths[0], rows)]


def _copy_slab(fetcher: Fetcher, piece: StoredPiece, copy: BoxCopy, low: int, high: int) -> int:
    """Rows ``low .. high`` of the box: read whole, then copied as far as they are wanted."""
    shape = piece.spec.shape
    at = copy.offsets[0] + low if shape else 0
    slab = torch.empty((high - low, *shape[1:]) if shape else (), dtype=torch_dtype(piece.spec.dtype))
    memory = slab.reshape(-1).view(torch.uint8).numpy()
    first = _first_byte(piece, (at, *(0 for _ in shape[1:]))) if shape else 0
    for section, begin, end, to in _overlaps(piece.sections, first, first + len(memory)):
        _read_into(fetcher, section, begin, end, memory[to : to + end - begin])
    lengths = tuple(copy.target.shape)
    if not shape:
        copy.target.copy_(slab)
    else:
        copy.target[low:high].copy_(narrowed(slab, (0, *copy.offsets[1:]), (high - low, *lengths[1:])))
    return len(memory)
