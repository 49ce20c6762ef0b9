"""CRC-32 (the one of zlib, gzip and PNG) of each block of some bytes: with zlib, or by carry-less multiplication.

zlib takes 0.27 s of a core for a GiB. Where the processor multiplies without carries and Numba is installed, it takes
0.08 s, or 0.03 s where it multiplies 512 bits at once, but loading Numba takes 0.7 s.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache

Checksums = Callable[[memoryview, int], list[int]]  # of bytes, and of how many at a time
_WORTHWHILE_BYTES = 4 << 30  # from here on, loading Numba saves more time than it takes


def zlib_checksums(data: memoryview, block_bytes: int) -> list[int]:
    """The reference."""
    return [zlib.crc32(data[start : start + block_bytes]) for start in range(0, len(data), block_bytes)]


@cache
def fast_checksums() -> Checksums:
    """The fastest that there is here; all give the same. The first call may compile."""
    try:
        from llvmlite import binding  # type: ignore[import-untyped, unused-ignore]

        if not binding.get_host_cpu_features().get("pclmul"):
            return zlib_checksums
        from holdfast.kernels.checksums.folded import folded_checksums
    except (ImportError, RuntimeError):
        return zlib_checksums
    return folded_checksums


def warm_up() -> None:
    """Compile or load now what is fastest: ``ready_checksums`` gives it from then on."""
    fast_checksums()


def load_for(size_bytes: int) -> None:
    """Load the fastest, if so many bytes are worth it."""
    if size_bytes >= _WORTHWHILE_BYTES:
        warm_up()


def ready_checksums() -> Checksums:
    """The fastest that is loaded: nothing is imported or compiled."""
    return fast_checksums() if fast_checksums.cache_info().currsize else zlib_checksums
