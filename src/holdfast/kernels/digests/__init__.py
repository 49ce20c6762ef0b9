"""Copies of byte strings with their SHA-256 and the CRC-32 of their blocks, several side by side on one core.

The rounds of SHA-256 wait for each other, so a core that computes one digest is half idle: a GiB takes it 0.64 s, and
0.1 s more to copy. Where the processor has instructions for SHA-256 and Numba is installed, two digests fill each
other's gaps, and what they read is stored on the way: a GiB takes 0.35 s. Where it has AVX-512 too, sixteen digests
share its vectors, a lane each, and the checksums are computed on the way: 0.2 s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.checksums import zlib_checksums

MOST_AT_ONCE = 16  # digests that are computed side by side
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """Of one copy: its SHA-256, and the CRC-32 of each of its blocks."""

    digest: bytes
    checksums: list[int]


# Copies each source to its target, which is as long or the same memory; the number is that of the bytes in a block. A
# source that changes meanwhile gives a copy of no one moment, but a digest and checksums that are the copy's.
HashedCopies = Callable[[Sequence[Bytes], Sequence[Bytes], int], list[Copied]]


def plain_copies(sources: Sequence[Bytes], targets: Sequence[Bytes], block_bytes: int) -> list[Copied]:
    """The reference."""
    for source, target in zip(sources, targets, strict=True):
        np.copyto(target, source)
    return [
        Copied(digest=hashlib.sha256(target.data).digest(), checksums=zlib_checksums(target.data, block_bytes))
        for target in targets
    ]


@cache
def fast_copies() -> HashedCopies:
    """The fastest that there is here; all give the same. The first call may compile."""
    try:
        from llvmlite import binding  # type: ignore[import-untyped, unused-ignore]

        features = binding.get_host_cpu_features()
        if not (features.get("sha") and features.get("ssse3") and features.get("pclmul")):
            return plain_copies
        if all(features.get(each) for each in ("avx512f", "avx512bw", "vpclmulqdq")):
            from holdfast.kernels.digests.sixteen import sixteen_copies

            return sixteen_copies
        from holdfast.kernels.digests.paired import paired_copies
    except (ImportError, RuntimeError):
        return plain_copies
    return paired_copies
