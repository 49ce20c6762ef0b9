"""Memory that is freed stays with the process: servers and workers take and free megabytes in every step.

A fresh page costs a fault, about a quarter of a millisecond per megabyte: more than to copy what comes into it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

import numpy as np

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MOST_HEAPS = -1, -3, -8  # glibc's numbers for mallopt
_KEPT_BYTES = 1 << 30
_OLD_KEPT_BYTES = 1 << 25  # the most that glibc takes before 2.35
_PIECE_BYTES = 1 << 24  # of what is readied: a part of the heap with every glibc


def keep_freed_memory(*, one_heap: bool = False) -> None:
    """Serve large arrays from the heap, and give none of it back. Without glibc nothing happens.

    Args:
        one_heap: For all threads. Otherwise those of sockets have heaps of their own, which are given back in pieces,
            and which nobody else can fill with pages before the first message comes.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if not mallopt(_MMAP_THRESHOLD, _KEPT_BYTES):
            mallopt(_MMAP_THRESHOLD, _OLD_KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        if one_heap:
            mallopt(_MOST_HEAPS, 1)


def ready_heap(size_bytes: int) -> None:
    """Take pages for so much now, once freed memory is kept: messages that arrive later find them.

    NumPy asks for huge pages where arrays are large. A socket's thread does not, for the messages that it receives: a
    block of 8 MB has two thousand small pages, whose addresses no core keeps together.
    """
    pieces = [np.empty(_PIECE_BYTES, np.uint8) for _ in range(-(-min(size_bytes, _KEPT_BYTES // 2) // _PIECE_BYTES))]
    for piece in pieces:
        piece.fill(0)
