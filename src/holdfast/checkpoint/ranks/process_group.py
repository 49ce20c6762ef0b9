"""Agreement over torch.distributed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.checkpoint.ranks.agreement import Agreement, Alone
from holdfast.checkpoint.ranks.lines import draw_lines, machine_of_this_rank
from holdfast.checkpoint.ranks.meeting import meet, wait_for

# A save agrees twice or more while all ranks' training waits, and every collective may wait for a rank to wake.
_ROOM = 8192  # bytes of a value that travels with its length
_LENGTH = 8  # bytes that say how long it is


class ProcessGroupAgreement:
    """Agreement over a gloo group of the job's processes, which all of them create together."""

    def __init__(self, timeout_s: float) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.peers: Mapping[int, int] = {}
        self._timeout_s = timeout_s
        self._group = meet(timeout_s)
        self._sent: dist.Work | None = None  # what rank 0 did not wait for

    def broadcast(self, value: Any, *, wait: bool = True) -> Any:
        """Rank 0's value, as JSON: in one message, unless it is long."""
        data = json.dumps(value).encode() if self.rank == 0 else b""
        message = _message(data, _ROOM)
        self._await_sent()
        self._sent = dist.broadcast(message, 0, group=self._group, async_op=True)
        if self.rank == 0 and not wait and len(data) <= _ROOM:
            return value
        self._await_sent()
        length = _length(message)
        if length > _ROOM:
            message = _message(data, length)
            self._wait(dist.broadcast(message, 0, group=self._group, async_op=True))
        return _value(message)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, as JSON: in one message each, unless one is long."""
        data = json.dumps(value).encode()
        messages = self._gathered(_message(data, _ROOM))
        longest = max(map(_length, messages))
        if longest > _ROOM:
            messages = self._gathered(_message(data, longest))
        return [_value(message) for message in messages]

    def any(self, flag: bool) -> bool:
        """Whether some rank says so."""
        value = torch.tensor([int(flag)], dtype=torch.int32)
        self._await_sent()
        self._wait(dist.all_reduce(value, dist.ReduceOp.MAX, group=self._group, async_op=True))
        return bool(value.item())

    def _gathered(self, message: Tensor) -> list[Tensor]:
        messages = [torch.empty_like(message) for _ in range(self.world)]
        self._await_sent()
        self._wait(dist.all_gather(messages, message, group=self._group, async_op=True))
        return messages

    def _await_sent(self) -> None:
        sent, self._sent = self._sent, None
        self._wait(sent)

    def _wait(self, work: dist.Work | None) -> None:
        if work is not None:
            wait_for(work, rank=self.rank, world=self.world, timeout_s=self._timeout_s)


def find_agreement(timeout_s: float, machine: Callable[[], str | None] = machine_of_this_rank) -> Agreement:
    """The job's processes if torch.distributed is initialised, else this process alone."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return Alone()
    group = ProcessGroupAgreement(timeout_s)
    return draw_lines(group, timeout_s, machine) or group


def _message(data: bytes, room: int) -> Tensor:
    """The length of some bytes, and as many of them as there is room for: all ranks know how long a message is."""
    message = torch.zeros(_LENGTH + room, dtype=torch.uint8)
    head = len(data).to_bytes(_LENGTH, "little") + data[:room]
    message[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    return message


def _length(message: Tensor) -> int:
    return int.from_bytes(message[:_LENGTH].numpy().tobytes(), "little")


def _value(message: Tensor) -> Any:
    return json.loads(message[_LENGTH : _LENGTH + _length(message)].numpy().tobytes())
