"""A stream of its own for what leaves a device, and the order between it and the one that training runs on.

The seam to CUDA of snapshots: what is queued where, and what waits for what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

logger = logging.getLogger("holdfast")

Queue = Callable[[], None]  # queues work on a device's current stream


class Copy(NamedTuple):
    """Bytes that go from a device to host memory, which is pinned."""

    target: Tensor
    source: Tensor


class Mark(Protocol):
    """A place in a side stream."""

    def is_past(self) -> bool:
        """Whether the device has done everything before it. Never waits."""
        ...

    def wait(self) -> None:
        """Until it has."""
        ...


class SideStreams(Protocol):
    """One side stream for each device. Its user promises to write to no source before a mark after its copy is past.

    Memory that is given back to torch's allocator while a copy still reads it is not reused before that copy.
    """

    def covers(self, tensor: Tensor) -> bool:
        """Whether the tensor is on a device with a side stream."""
        ...

    def memory_bytes(self, device: torch.device) -> int:
        """How much memory the device has."""
        ...

    def reserve(self, device: torch.device, size: int) -> Tensor:
        """Memory on the device, as bytes. Raises ``torch.OutOfMemoryError``."""
        ...

    def host_numbers(self, length: int) -> Tensor:
        """Pinned host memory for so many numbers (int64)."""
        ...

    def numbers_on(self, device: torch.device, numbers: Sequence[int]) -> Tensor:
        """Numbers (int64) on the device, for what is queued on its current stream from now on."""
        ...

    def recorded(self, device: torch.device, queue: Queue) -> Queue:
        """What queues the same work as ``queue`` in one call: the same kernels, with the same arguments.

        ``queue`` was called before; it reads and writes memory that stays where it is for as long as the result lives.
        """
        ...

    def follow(self, device: torch.device) -> None:
        """What is copied from now on comes after all that is queued on the device's current stream now."""
        ...

    def copy(self, device: torch.device, copies: Iterable[Copy]) -> None:
        """Queue copies. Both sides are contiguous."""
        ...

    def mark(self, device: torch.device) -> Mark:
        """A mark after all that was queued so far."""
        ...


class CudaMark:
    """See ``Mark``."""

    __slots__ = ("_event",)

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_past(self) -> bool:
        """Whether the GPU is past it."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Until it is; other threads run meanwhile."""
        self._event.synchronize()


class CudaStreams:
    """See ``SideStreams``: for GPUs."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._records = True

    def covers(self, tensor: Tensor) -> bool:
        """Whether it is on a GPU."""
        return tensor.is_cuda

    def memory_bytes(self, device: torch.device) -> int:
        """The GPU's memory."""
        return torch.cuda.get_device_properties(device).total_memory

    def reserve(self, device: torch.device, size: int) -> Tensor:
        """Memory on the GPU."""
        return torch.empty(size, dtype=torch.uint8, device=device)

    def host_numbers(self, length: int) -> Tensor:
        """Pinned memory, from torch's cache of it."""
        return torch.empty(length, dtype=torch.int64, pin_memory=True)

    def numbers_on(self, device: torch.device, numbers: Sequence[int]) -> Tensor:
        """Copied on the current stream, from pinned memory that torch's cache keeps until then."""
        return torch.tensor(numbers, dtype=torch.int64, pin_memory=True).to(device, non_blocking=True)

    def recorded(self, device: torch.device, queue: Queue) -> Queue:
        """A CUDA graph; ``queue`` itself where none can be made.

        Not by ``torch.cuda.graph``, which waits for the device and empties torch's cache. Other threads may go on.
        """
        if not self._records:
            return queue
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    queue()
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            logger.info("saves launch their kernels one by one: a CUDA graph of them cannot be made: %s", error)
            self._records = False
            return queue
        return graph.replay

    def follow(self, device: torch.device) -> None:
        """Let the side stream wait for an event on the current one."""
        self.stream(device).wait_stream(torch.cuda.current_stream(device))

    def copy(self, device: torch.device, copies: Iterable[Copy]) -> None:
        """Queue copies on the side stream."""
        stream = self.stream(device)
        with torch.cuda.stream(stream):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
                self.lend(source, stream)

    def lend(self, source: Tensor, stream: torch.cuda.Stream) -> None:
        """Tell the allocator who reads the memory; else it gives it, once free, to the next kernel of training."""
        source.record_stream(stream)

    def mark(self, device: torch.device) -> Mark:
        """An event on the side stream."""
        event = torch.cuda.Event()
        event.record(self.stream(device))
        return CudaMark(event)

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """The side stream."""
        if (found := self._streams.get(device)) is None:
            found = self._streams[device] = torch.cuda.Stream(device)
        return found


def streams_for(tensors: Iterable[Tensor]) -> SideStreams | None:
    """Side streams for the devices of these tensors; None where they are all in host memory."""
    streams = CudaStreams()
    return streams if any(streams.covers(tensor) for tensor in tensors) else None
