"""Bit-set kernels in plain torch, for any device. Only ``list_ids`` and ``count``, which read back, wait for it.

Row ``i`` is bit ``i & 7`` of byte ``i >> 3``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def mark(bits: Tensor, ids: Tensor, rows: int) -> None:
    """Set the bits of ``ids``."""
    ids = ids.to(torch.int64).sort().values
    first = torch.ones_like(ids, dtype=torch.bool)
    first[1:] = ids[1:] != ids[:-1]
    # Each id counts once, so within a byte the sum of its bits is their union.
    bit = first.to(torch.uint8) << (ids & 7).to(torch.uint8)
    bits |= torch.zeros_like(bits).index_add_(0, ids >> 3, bit)


def mark_nonzero_rows(bits: Tensor, patterns: Tensor) -> None:
    """Set the bit of every row of a 2-D integer tensor that is not all zero."""
    flags = torch.zeros(bits.numel() * 8, dtype=torch.uint8, device=bits.device)
    flags[: patterns.shape[0]] = (patterns != 0).any(dim=1)
    bits |= (flags.view(-1, 8) << _positions(bits)).sum(dim=1, dtype=torch.uint8)


def list_ids(bits: Tensor, start: int, stop: int) -> Tensor:
    """The rows of ``[start, stop)`` whose bit is set, ascending."""
    return _unpack(bits, start, stop).nonzero().view(-1) + start


def count(bits: Tensor, start: int, stop: int) -> int:
    """How many rows of ``[start, stop)`` have their bit set."""
    return int(_unpack(bits, start, stop).sum(dtype=torch.int64))


def list_bounded(bits: Tensor, start: int, stop: int, bound: int, fill: int) -> tuple[Tensor, Tensor]:
    """The first ``bound`` rows of ``[start, stop)`` whose bit is set, then ``fill``; and how many there are in all."""
    flags = _unpack(bits, start, stop)
    running = flags.cumsum(0, dtype=torch.int64)
    places = torch.where((flags != 0) & (running <= bound), running - 1, bound)  # what has no place goes behind
    found = torch.full((bound + 1,), fill, dtype=torch.int64, device=bits.device)
    found.scatter_(0, places, torch.arange(start, stop, device=bits.device))
    return found[:bound], running[-1:]


def count_later(bits: Tensor, start: int, stop: int) -> Tensor:
    """How many rows of ``[start, stop)`` have their bit set, as one number on the device."""
    return _unpack(bits, start, stop).sum(dtype=torch.int64).view(1)


def _unpack(bits: Tensor, start: int, stop: int) -> Tensor:
    first = start >> 3
    unpacked = (bits[first : (stop + 7) >> 3, None] >> _positions(bits)) & 1
    return unpacked.view(-1)[start - 8 * first : stop - 8 * first]


def _positions(bits: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=bits.device)
