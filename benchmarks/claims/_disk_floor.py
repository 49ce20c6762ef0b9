"""How long the disk alone takes to make bytes durable: nobody who writes them all can be faster."""

from __future__ import annotations

import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_FILE_BYTES = 32 << 20
_THREADS = 3


def disk_floor_s(folder: Path, size_bytes: int) -> float:
    """Seconds for direct writes of so many bytes to new files, each synced; nothing is copied or computed.

    Args:
        folder: Where to write; what is written is deleted again.
        size_bytes: How much.
    """
    with mmap.mmap(-1, _FILE_BYTES) as page_aligned:
        page_aligned.write(os.urandom(_FILE_BYTES))
        files = [folder / f"floor-{number}" for number in range(max(1, size_bytes // _FILE_BYTES))]
        started_s = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda path: _write(path, page_aligned), files))
        taken_s = time.perf_counter() - started_s
    for path in files:
        path.unlink()
    return taken_s


def _write(path: Path, data: mmap.mmap) -> None:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_DIRECT", 0))
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
