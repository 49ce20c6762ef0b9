"""Memory for frames, which the saves of a process use again as long as nobody else needs it."""

from __future__ import annotations

import mmap
import threading
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_HUGE_PAGE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Memory that begins with a page, in huge pages where the system has them."""

    mapped: mmap.mmap
    memory: NDArray[np.uint8]

    @classmethod
    def new(cls, size_bytes: int) -> Piece:
        """Not used by anybody before."""
        mapped = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                mapped.madvise(mmap.MADV_HUGEPAGE)
        memory: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        start = -memory.ctypes.data % _HUGE_PAGE_BYTES
        return cls(mapped=mapped, memory=memory[start : start + size_bytes])


class Pages:
    """Pieces of one size.

    New memory is cleared by the system, page by page as it is first used, and a virtual machine may have to get it from
    its host first: for the frames of a save, that took processors 20 to 75 ms. So a piece that is given back is kept,
    but marked as free: the system takes its pages when it needs them.

    Args:
        size_bytes: Of each piece.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._lock = threading.Lock()
        self._kept: list[Piece] = []

    def take(self) -> Piece:
        """A piece with anything in it."""
        with self._lock:
            return self._kept.pop() if self._kept else Piece.new(self._size_bytes)

    def give_back(self, piece: Piece) -> None:
        """Let others have a piece, which nobody may use any more."""
        if hasattr(mmap, "MADV_FREE"):
            with suppress(OSError):  # a system that takes no single pages back: the piece goes as a whole
                piece.mapped.madvise(mmap.MADV_FREE)
                with self._lock:
                    self._kept.append(piece)
