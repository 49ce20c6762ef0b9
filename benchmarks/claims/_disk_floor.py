"""How long the disk alone takes to make bytes durable: nobody who writes them all can be faster."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

_FILE_BYTES = 32 << 20
_PIECE_BYTES = 4 << 20
_HUGE_PAGE_BYTES = 2 << 20
_THREADS = 4


def disk_floor_s(folder: Path, size_bytes: int) -> float:
    """Seconds for direct writes of so many bytes to new files, synced in the end; nothing is copied or computed.

    Args:
        folder: Where to write; what is written is deleted again.
        size_bytes: How much.
    """
    data = _noise()
    files = [folder / f"floor-{number}" for number in range(max(1, size_bytes // _FILE_BYTES))]
    started_s = time.perf_counter()
    with ThreadPoolExecutor(_THREADS) as pool:
        handles = list(pool.map(lambda path: _written(path, data), files))
    for handle in handles:
        os.fsync(handle)
    taken_s = time.perf_counter() - started_s
    for handle, path in zip(handles, files, strict=True):
        os.close(handle)
        path.unlink()
    return taken_s


def _noise() -> memoryview:
    """Bytes that cannot be compressed, in huge pages where there are any: the fastest to write from."""
    mapped = mmap.mmap(-1, _FILE_BYTES + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE_BYTES
    aligned = memory[start : start + _FILE_BYTES]
    aligned[:] = np.frombuffer(os.urandom(_FILE_BYTES), np.uint8)
    return aligned.data


def _written(path: Path, data: memoryview) -> int:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_DIRECT", 0))
    for start in range(0, len(data), _PIECE_BYTES):
        os.write(handle, data[start : start + _PIECE_BYTES])
    return handle
