"""How fast codecs are: GB of float32 rows per second, the median of several runs, ours and PyTorch's taking turns.

Every run allocates its result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims import _torch_prepack
from benchmarks.claims._codec_losses import SEARCHED, codecs
from holdfast.codec import AdaptiveAsymmetric, Codec, Encoded

Rows = NDArray[np.float32]

THREADS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """GB of float32 rows per second; 0 where it was not measured."""

    encode: float
    decode: float = 0.0
    bytes_per_row: int = 0


def measure(rows: Rows, searched_rows: int, repeats: int) -> dict[str, Speed]:
    """By ``<codec>_<bits>bit_<n>threads``; PyTorch's as ``torch`` and ``torch_searched``."""
    speeds: dict[str, Speed] = {}
    for bits in (*SEARCHED, 8):
        for count in THREADS:
            with _torch_prepack.threads(count):
                found = _compare(rows, bits, count, searched_rows, repeats)
            speeds |= {f"{name}_{bits}bit_{count}threads": speed for name, speed in found.items()}
    return speeds


def _compare(rows: Rows, bits: int, count: int, searched_rows: int, repeats: int) -> dict[str, Speed]:
    """All of one bit-width, taking turns."""
    part = rows[:searched_rows]
    jobs: dict[str, Callable[[], object]] = {}
    sizes: dict[str, int] = {}
    for name, codec in codecs(bits).items():
        encoded = codec.encode(rows, threads=count)
        jobs[name] = _encoding(codec, rows, count)
        jobs[f"{name} back"] = _decoding(codec, encoded, rows.shape[1], count)
        sizes[name] = codec.bytes_per_row(rows.shape[1])
    if bits in (2, 4, 8):
        jobs["torch"] = lambda: _torch_prepack.pack(rows, bits)
        sizes["torch"] = _torch_prepack.pack(rows[:1], bits).shape[1]
    if bits in (2, 4):
        search = AdaptiveAsymmetric.as_published(bits)
        jobs["torch_searched"] = lambda: _torch_prepack.pack_searched(part, bits, search.num_bins, search.ratio)
        sizes["torch_searched"] = sizes["torch"]
    seconds = _taking_turns(jobs, repeats)
    rate = {name: (part if name == "torch_searched" else rows).nbytes / s / 1e9 for name, s in seconds.items()}
    return {
        name: Speed(encode=rate[name], decode=rate.get(f"{name} back", 0.0), bytes_per_row=size)
        for name, size in sizes.items()
    }


def _encoding(codec: Codec, rows: Rows, count: int) -> Callable[[], object]:
    return lambda: codec.encode(rows, threads=count)


def _decoding(codec: Codec, encoded: Encoded, dim: int, count: int) -> Callable[[], object]:
    return lambda: codec.decode(encoded, dim, threads=count)


def _taking_turns(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, at its second run in a row: threads of the job before still hold a core in the first."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            job()
            started_s = time.perf_counter()
            job()
            seconds[name].append(time.perf_counter() - started_s)
    return {name: statistics.median(values) for name, values in seconds.items()}
