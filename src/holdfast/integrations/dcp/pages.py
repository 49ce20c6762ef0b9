"""Memory for frames, which the saves of a process use again as long as nobody else needs it."""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

_HUGE_PAGE_BYTES = 2 << 20


class Pages:
    """Pieces of memory of one size, each beginning with a page, in huge pages where the system has them.

    New memory is cleared by the system, page by page as it is first used, and a virtual machine may have to get it from
    its host first: for the frames of a save, that took processors 20 to 75 ms. So a piece that is given back is kept,
    but marked as free: the system takes its pages when it needs them.

    Args:
        size_bytes: Of each piece.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._kept: list[tuple[mmap.mmap, NDArray[np.uint8]]] = []
        self._taken: dict[int, mmap.mmap] = {}  # by the address of the piece

    def take(self) -> NDArray[np.uint8]:
        """A piece with anything in it."""
        with self._lock:
            mapped, piece = self._kept.pop() if self._kept else _mapped(self._size_bytes)
            self._taken[piece.ctypes.data] = mapped
        return piece

    def give_back(self, piece: NDArray[np.uint8]) -> None:
        """Let others have a piece, which nobody may use any more."""
        with self._lock:
            mapped = self._taken.pop(piece.ctypes.data)
            if not hasattr(mmap, "MADV_FREE"):
                return
            with suppress(OSError):  # a system that cannot take single pages back: the piece goes as a whole
                mapped.madvise(mmap.MADV_FREE)
                self._kept.append((mapped, piece))


def _mapped(size_bytes: int) -> tuple[mmap.mmap, NDArray[np.uint8]]:
    mapped = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    memory: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE_BYTES
    return mapped, memory[start : start + size_bytes]
