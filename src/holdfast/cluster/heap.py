"""Memory that is freed stays with the process: servers and workers take and free megabytes in every step.

A fresh page costs a fault, about a quarter of a millisecond per megabyte: more than to copy what comes into it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

import numpy as np

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_HEAPS = -1, -3, -8  # glibc's numbers for mallopt
_KEPT_BYTES = 1 << 30


def keep_freed_memory(*, one_heap: bool = False) -> None:
    """Serve large arrays from the heap, and give none of it back. Without glibc nothing happens.

    Args:
        one_heap: For all threads. Otherwise those of sockets have heaps of their own, which are given back in pieces,
            and which nobody else can fill with pages before the first message comes.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        if one_heap:
            mallopt(_MOST_HEAPS, 1)


def ready_heap(size_bytes: int) -> None:
    """Take pages for so much now, once freed memory is kept: messages that arrive later find them.

    NumPy asks for huge pages where arrays are large. A socket's thread does not, for the messages that it receives: a
    block of 8 MB has two thousand small pages, whose addresses no core keeps together.
    """
    np.empty(min(size_bytes, _KEPT_BYTES // 2), np.uint8).fill(0)
