"""Side streams without a GPU: tensors in memory, and copies that happen as late as those of a real one might.

What training queues happens at once, as if its stream were always first. A copy happens when somebody asks for a mark
behind it often enough, or waits. Until then its target holds garbage; and a source that is written to before its copy,
or that was written to after the side stream was last told to follow, raises.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.side_streams import Copy, Queue

GARBAGE = 0x5A


class OutOfOrder(AssertionError):
    """Memory was used before, or after, it could be."""


@dataclass(slots=True)
class _Queued:
    copy: Copy
    was: Tensor  # the source, when it was queued


@dataclass(slots=True)
class DelayedMark:
    """Past once ``after`` copies were made."""

    streams: DelayedStreams
    after: int

    def is_past(self) -> bool:
        self.streams.run(self.streams.draw.randint(0, self.streams.most_at_once), until=self.after)
        return self.streams.made >= self.after

    def wait(self) -> None:
        self.streams.run(None, until=self.after)


@dataclass(slots=True)
class DelayedStreams:
    """See ``SideStreams``: covers every tensor."""

    most_at_once: int = 3
    memory: int = 2**40
    made: int = 0
    waits: int = 0
    queued: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    _queue: deque[_Queued] = field(default_factory=deque)
    _followed: list[Tensor] = field(default_factory=list)  # what the buffers were
    _buffers: list[Tensor] = field(default_factory=list)

    def covers(self, tensor: Tensor) -> bool:
        return True

    def memory_bytes(self, device: torch.device) -> int:
        return self.memory

    def reserve(self, device: torch.device, size: int) -> Tensor:
        buffer = torch.full((size,), GARBAGE, dtype=torch.uint8)
        self._buffers.append(buffer)
        return buffer

    def host_numbers(self, length: int) -> Tensor:
        return torch.full((length,), -(10**9))

    def numbers_on(self, device: torch.device, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64)

    def recorded(self, device: torch.device, queue: Queue) -> Queue:
        return queue

    def follow(self, device: torch.device) -> None:
        self._followed = [buffer.clone() for buffer in self._buffers]

    def copy(self, device: torch.device, copies: Iterable[Copy]) -> None:
        for copy in copies:
            assert copy.target.is_contiguous() and copy.source.is_contiguous()
            assert copy.target.nbytes == copy.source.nbytes
            if not self._is_followed(copy.source):
                raise OutOfOrder("a side stream copies what it was not told to wait for")
            copy.target.view(torch.uint8).fill_(GARBAGE)
            self._queue.append(_Queued(copy, copy.source.clone()))
            self.queued += 1

    def _is_followed(self, source: Tensor) -> bool:
        """Whether it is what it was when the side stream was last told to follow."""
        for number, buffer in enumerate(self._buffers):
            at = source.data_ptr() - buffer.data_ptr()
            if 0 <= at < len(buffer):
                known = self._followed[number] if number < len(self._followed) else None
                return known is not None and torch.equal(known[at : at + source.nbytes], source.view(torch.uint8))
        return True

    def mark(self, device: torch.device) -> DelayedMark:
        return DelayedMark(self, self.queued)

    def run(self, most: int | None, *, until: int) -> None:
        """Make so many copies (None: all) up to a mark."""
        if most is None and self.made < until:
            self.waits += 1
        while self._queue and self.made < until and (most is None or most > 0):
            queued = self._queue.popleft()
            if not torch.equal(queued.copy.source, queued.was):
                raise OutOfOrder("memory was written to before its copy was made")
            queued.copy.target.copy_(queued.copy.source)
            self.made += 1
            most = None if most is None else most - 1
