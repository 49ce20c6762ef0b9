"""Memory that is freed stays with the process: servers and workers take and free megabytes in every step.

A fresh page costs a fault, about a quarter of a millisecond per megabyte: more than to copy what comes into it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for mallopt
_KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Serve large arrays from the heap, and give none of it back. Without glibc nothing happens."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
