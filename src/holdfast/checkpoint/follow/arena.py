"""Memory for what one update will write: RAM up to a limit, a file beyond it."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO

import torch
from torch import Tensor

from holdfast.errors import StorageFull
from holdfast.format.layout import padded

_SEGMENT_BYTES = 64 * 2**20  # the file grows by


class Arena:
    """Allocates tensors, all of which are freed on exit. Thread-safe."""

    def __init__(self, memory_bytes: int, folder: Path | None) -> None:
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._lock = threading.Lock()
        self._taken_bytes = 0
        self._file: IO[bytes] | None = None
        self._file_bytes = 0
        self._segment: mmap.mmap | None = None
        self._used_bytes = 0  # of the segment

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._segment = None  # unmapped with the last tensor in it
        if self._file is not None:
            self._file.close()

    @property
    def spilled_bytes(self) -> int:
        """How large its file is."""
        return self._file_bytes

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor with anything in it."""
        count = math.prod(shape)
        size_bytes = padded(count * dtype.itemsize)
        with self._lock:
            if not count or self._taken_bytes + size_bytes <= self._memory_bytes:
                self._taken_bytes += size_bytes
                return torch.empty(shape, dtype=dtype)
            segment, offset = self._place(size_bytes)
        return torch.frombuffer(segment, dtype=dtype, count=count, offset=offset).view(shape)

    def _place(self, size_bytes: int) -> tuple[mmap.mmap, int]:
        if self._segment is None or self._used_bytes + size_bytes > len(self._segment):
            self._segment, self._used_bytes = self._grow(max(size_bytes, _SEGMENT_BYTES)), 0
        offset = self._used_bytes
        self._used_bytes += size_bytes
        return self._segment, offset

    def _grow(self, size_bytes: int) -> mmap.mmap:
        size_bytes = -(-size_bytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed when the arena is left
        handle = self._file.fileno()
        try:
            os.posix_fallocate(handle, self._file_bytes, size_bytes)  # a full disk would end the process later
        except OSError as error:
            raise StorageFull(
                f"no space for another {size_bytes} bytes of an update in {self._folder or tempfile.gettempdir()} "
                f"({error.strerror}): raise staging_bytes=, or pass another folder as spill="
            ) from error
        segment = mmap.mmap(handle, size_bytes, offset=self._file_bytes)
        self._file_bytes += size_bytes
        return segment
