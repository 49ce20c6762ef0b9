"""How the ranks of one job agree on a save. Only in the foreground, only a few bytes, only around saves.

Storage decides commits; these collectives merely make sure that all ranks snapshot the same step in the same way.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Agreement(Protocol):
    """Every method is called by all ranks at the same point."""

    rank: int
    world: int

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value (plain JSON), on every rank."""
        ...

    def any(self, flag: bool) -> bool:
        """Whether it is true on some rank."""
        ...


class Alone:
    """A job of one process."""

    rank = 0
    world = 1

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value

    def any(self, flag: bool) -> bool:
        """The flag itself."""
        return flag


class ProcessGroupAgreement:
    """Agreement over a gloo group of the job's processes, made by all of them when it is constructed."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._group = dist.new_group(backend="gloo")

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, as JSON bytes behind their length."""
        data = json.dumps(value).encode() if self.rank == 0 else b""
        length = torch.tensor([len(data)], dtype=torch.int64)
        dist.broadcast(length, 0, group=self._group)
        payload = torch.zeros(int(length), dtype=torch.uint8)
        if self.rank == 0:
            payload.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(payload, 0, group=self._group)
        return json.loads(bytes(payload.tolist()))

    def any(self, flag: bool) -> bool:
        """Whether some rank says so."""
        value = torch.tensor([int(flag)], dtype=torch.int32)
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self._group)
        return bool(value.item())


def find_agreement() -> Agreement:
    """The job's processes if torch.distributed is initialised, else this process alone."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return ProcessGroupAgreement()
    return Alone()
