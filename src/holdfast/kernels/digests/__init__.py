"""Copies of byte strings with their SHA-256: with hashlib, or several side by side on one core.

The rounds of SHA-256 wait for each other, so a core that computes one digest is half idle: a GiB takes it 0.64 s, and
0.1 s more to copy. Where the processor has instructions for SHA-256 and Numba is installed, two digests fill each
other's gaps, and what they read is stored on the way: a GiB takes 0.35 s. Where it has AVX-512 too, sixteen digests
share its vectors, a lane each: 0.2 s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

MOST_AT_ONCE = 16  # digests that are computed side by side
Bytes = NDArray[np.uint8]
# Copies each source to its target, which is as long or the same memory, and returns the SHA-256 of each copy. A source
# that changes meanwhile gives a copy of no one moment, but a digest that is the copy's.
HashedCopies = Callable[[Sequence[Bytes], Sequence[Bytes]], list[bytes]]


def plain_copies(sources: Sequence[Bytes], targets: Sequence[Bytes]) -> list[bytes]:
    """The reference."""
    for source, target in zip(sources, targets, strict=True):
        np.copyto(target, source)
    return [hashlib.sha256(target.data).digest() for target in targets]


@cache
def fast_copies() -> HashedCopies:
    """The fastest that there is here; all give the same. The first call may compile."""
    try:
        from llvmlite import binding  # type: ignore[import-untyped, unused-ignore]

        features = binding.get_host_cpu_features()
        if not (features.get("sha") and features.get("ssse3")):
            return plain_copies
        if features.get("avx512f") and features.get("avx512bw"):
            from holdfast.kernels.digests.sixteen import sixteen_copies

            return sixteen_copies
        from holdfast.kernels.digests.paired import paired_copies
    except (ImportError, RuntimeError):
        return plain_copies
    return paired_copies
