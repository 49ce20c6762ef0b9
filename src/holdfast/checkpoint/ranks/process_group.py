"""Agreement over torch.distributed."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from holdfast.checkpoint.ranks.agreement import Agreement, Alone
from holdfast.checkpoint.ranks.meeting import meet, wait_for


class ProcessGroupAgreement:
    """Agreement over a gloo group of the job's processes, which all of them create together."""

    def __init__(self, timeout_s: float) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._timeout_s = timeout_s
        self._group = meet(timeout_s)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, as JSON bytes behind their length."""
        data = json.dumps(value).encode() if self.rank == 0 else b""
        length = torch.tensor([len(data)], dtype=torch.int64)
        self._wait(dist.broadcast(length, 0, group=self._group, async_op=True))
        payload = _bytes(data, int(length))
        self._wait(dist.broadcast(payload, 0, group=self._group, async_op=True))
        return json.loads(bytes(payload.tolist()))

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, as JSON bytes padded to the longest."""
        data = json.dumps(value).encode()
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        self._wait(dist.all_gather(lengths, torch.tensor([len(data)]), group=self._group, async_op=True))
        longest = max(map(int, lengths))
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
        self._wait(dist.all_gather(parts, _bytes(data, longest), group=self._group, async_op=True))
        return [json.loads(bytes(part[: int(n)].tolist())) for part, n in zip(parts, lengths, strict=True)]

    def any(self, flag: bool) -> bool:
        """Whether some rank says so."""
        value = torch.tensor([int(flag)], dtype=torch.int32)
        self._wait(dist.all_reduce(value, dist.ReduceOp.MAX, group=self._group, async_op=True))
        return bool(value.item())

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None:
            wait_for(work, rank=self.rank, world=self.world, timeout_s=self._timeout_s)


def find_agreement(timeout_s: float) -> Agreement:
    """The job's processes if torch.distributed is initialised, else this process alone."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        return ProcessGroupAgreement(timeout_s)
    return Alone()


def _bytes(data: bytes, length: int) -> torch.Tensor:
    payload = torch.zeros(length, dtype=torch.uint8)
    if data:
        payload[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return payload
