"""The snapshot buffer: memory shared with the agent, reserved once, divided into frames.

An anonymous memory file that both processes map: it needs no name, no /dev/shm and no resource tracker. Its pages are
made at the start, because page faults, not bytes, are what makes a fresh copy slow.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress

from holdfast.checkpoint.wire import shared_pages
from holdfast.checkpoint.wire.memory import available_bytes
from holdfast.checkpoint.wire.shared_pages import SharedPages
from holdfast.errors import ConfigurationError

PAGE = mmap.PAGESIZE
_RESERVE = 0.9  # of the memory that is available; more would invite the kernel to kill somebody


class FrameBuffer:
    """``frames`` frames of ``frame_bytes`` each in one shared mapping."""

    def __init__(self, fd: int, *, frames: int, frame_bytes: int) -> None:
        self.fd = fd
        self.frames = frames
        self.frame_bytes = frame_bytes
        self._pages = SharedPages(fd, frames * frame_bytes)
        self._close_fd = weakref.finalize(self, os.close, fd)

    @classmethod
    def reserve(cls, *, frames: int, frame_bytes: int) -> FrameBuffer:
        """A new buffer whose pages exist."""
        if frames < 1 or frame_bytes < PAGE or frame_bytes % PAGE:
            raise ConfigurationError(f"a buffer needs frames of whole pages, not {frames} x {frame_bytes} bytes")
        size = frames * frame_bytes
        available = available_bytes()
        if available is not None and size > available * _RESERVE:
            raise ConfigurationError(
                f"the snapshot buffer needs {size / 2**20:.0f} MiB, but only {available / 2**20:.0f} MiB of memory "
                "are available; pass a smaller buffer_bytes= (larger snapshots then wait for the agent)"
            )
        fd = os.memfd_create("holdfast-snapshot", os.MFD_CLOEXEC)
        try:
            shared_pages.reserve(fd, size)
            return cls(fd, frames=frames, frame_bytes=frame_bytes)
        except OSError as error:
            os.close(fd)
            raise ConfigurationError(
                f"cannot reserve {size / 2**20:.0f} MiB for the snapshot buffer ({error.strerror}): "
                "pass a smaller buffer_bytes="
            ) from error

    def renew(self) -> None:
        """Take fresh memory: a process that maps the old one and cannot be ended may still look at it."""
        fresh = FrameBuffer.reserve(frames=self.frames, frame_bytes=self.frame_bytes)
        self.close()
        fresh._close_fd.detach()
        self.fd, self._pages = fresh.fd, fresh._pages
        self._close_fd = weakref.finalize(self, os.close, self.fd)

    def shared(self) -> FrameBuffer:
        """The same memory, mapped once more: for an agent on a thread, which must not follow when ours is renewed."""
        return FrameBuffer(os.dup(self.fd), frames=self.frames, frame_bytes=self.frame_bytes)

    def frame(self, index: int) -> memoryview:
        """The bytes of one frame."""
        start = index * self.frame_bytes
        return self.whole()[start : start + self.frame_bytes]

    def whole(self) -> memoryview:
        """The memory of all frames."""
        return self._pages.view()

    def close(self) -> None:
        """Give the memory back; views that are still held keep it alive until they go."""
        with suppress(BufferError):  # a tensor still looks at it; the mapping ends with that tensor
            self._pages.close()
        self._close_fd()
