"""What kernels written for LLVM gain over their twins in plain Numba, on one thread and on two.

A kernel is written for LLVM by hand only where Numba has no word for what it does, or where that makes it 1.5 times as
fast: ``lanes_least_speedup`` must not fall below. The quantizers keep sixteen rows in the lanes of a register; their
twins encode a row at a time, to the same bytes. A gather of scattered rows, of torch's memory, prefetches each some
rows ahead, which its twin cannot.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.claims import _llvm_twins
from benchmarks.report import Figure, Report, Table
from holdfast.kernels import gather, quantize
from holdfast.kernels.parts import in_parts
from holdfast.kernels.quantize import Method, Scheme
from holdfast.kernels.quantize.cpu import encode
from holdfast.kernels.quantize.scheme import resolution, starts

THREADS = (1, 2)
PLAIN_BITS, FITTED_BITS = (8, 4), (4, 2)
GATHERED_DIMS, GATHERED_SHARE = (16, 32, 64), 0.1  # of the rows, in ascending order: what changed since a save


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    dims: Sequence[int]
    encoded_bytes: int
    table_bytes: int  # of which rows are gathered
    repeats: int


PLANS = {
    "tiny": Plan(dims=(32,), encoded_bytes=2**20, table_bytes=2**20, repeats=1),
    "small": Plan(dims=(32, 128), encoded_bytes=2**24, table_bytes=2**28, repeats=7),
    "full": Plan(
        dims=(32, 64, 128, 256),
        encoded_bytes=2**28,
        table_bytes=2**31,
        repeats=15,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A kernel and its twin, which work on the rows of a slice."""

    name: str
    rows: int
    kernel: Callable[[slice], object]
    twin: Callable[[slice], object]
    outputs: tuple[_llvm_twins.Records, _llvm_twins.Records]


def run(scale: str) -> Report:
    plan, speedups = PLANS[scale], dict[str, float]()
    for dim in plan.dims:
        rows = np.random.default_rng(dim).standard_normal((plan.encoded_bytes // (4 * dim), dim), dtype=np.float32)
        for pair in (*(_plain(rows, bits) for bits in PLAIN_BITS), *(_fitted(rows, bits) for bits in FITTED_BITS)):
            speedups |= _speedups(pair, plan.repeats)
    prefetched: dict[str, float] = {}
    for dim in GATHERED_DIMS:
        prefetched |= _speedups(_gathered(plan.table_bytes, dim), plan.repeats)
    figures: dict[str, Figure] = {"lanes_least_speedup": min(speedups.values()), **speedups}
    figures |= {"prefetch_most_speedup": max(prefetched.values()), **prefetched}
    tables = [_table("Encoding, lanes over rows", speedups), _table("Gathering, prefetched over not", prefetched)]
    return Report(title="Written for LLVM", tables=tables, figures=figures)


def _plain(rows: _llvm_twins.Rows, bits: int) -> Pair:
    scheme = Scheme(method=Method.ASYMMETRIC, bits=bits)
    ours, theirs = _records(rows, scheme), _records(rows, scheme)
    return Pair(
        name=f"plain_{bits}bit_dim{rows.shape[1]}",
        rows=len(rows),
        kernel=lambda part: encode(rows[part], scheme, ours[part]),
        twin=lambda part: _llvm_twins.encode_plain(rows[part], theirs[part], bits),
        outputs=(ours, theirs),
    )


def _fitted(rows: _llvm_twins.Rows, bits: int) -> Pair:
    scheme, dim = Scheme(method=Method.FITTED, bits=bits), rows.shape[1]
    ours, theirs = _records(rows, scheme), _records(rows, scheme)
    lines, finest = starts(bits, dim), np.float32(resolution(dim))
    return Pair(
        name=f"fitted_{bits}bit_dim{dim}",
        rows=len(rows),
        kernel=lambda part: encode(rows[part], scheme, ours[part]),
        twin=lambda part: _llvm_twins.encode_fitted(rows[part], theirs[part], bits, lines, finest),
        outputs=(ours, theirs),
    )


def _records(rows: _llvm_twins.Rows, scheme: Scheme) -> _llvm_twins.Records:
    return np.zeros((len(rows), quantize.record_bytes(scheme, rows.shape[1])), dtype=np.uint8)


def _gathered(table_bytes: int, dim: int) -> Pair:
    width = 4 * dim
    source = torch.arange(table_bytes // 4, dtype=torch.int32).view(-1, dim)
    ids = np.flatnonzero(np.random.default_rng(dim).random(len(source)) < GATHERED_SHARE)
    ours, theirs = (np.zeros((len(ids), width), dtype=np.uint8) for _ in range(2))

    def kernel(part: slice) -> None:
        chosen = ids[part]
        gather.gather([(ours[part].ctypes.data, source.data_ptr(), chosen.ctypes.data, width, len(chosen))], 1)

    return Pair(
        name=f"gather_{width}bytes",
        rows=len(ids),
        kernel=kernel,
        twin=lambda part: _llvm_twins.gather(theirs[part].ctypes.data, source.data_ptr(), ids[part], width),
        outputs=(ours, theirs),
    )


def _speedups(pair: Pair, repeats: int) -> dict[str, float]:
    """Median over median, the kernel and its twin taking turns; their results are the same to the bit."""
    found: dict[str, float] = {}
    for count in THREADS:
        kernel_s, twin_s = [], []
        for _ in range(1 + repeats):
            kernel_s.append(_seconds(pair.rows, pair.kernel, count))
            twin_s.append(_seconds(pair.rows, pair.twin, count))
        assert np.array_equal(*pair.outputs), f"{pair.name}: the kernel and its twin do not give the same bytes"
        found[f"{pair.name}_{count}threads_speedup"] = statistics.median(twin_s[1:]) / statistics.median(kernel_s[1:])
    return found


def _seconds(rows: int, work: Callable[[slice], object], threads: int) -> float:
    started_s = time.perf_counter()
    in_parts(rows, work, threads=threads)
    return time.perf_counter() - started_s


def _table(caption: str, speedups: dict[str, float]) -> Table:
    names = dict.fromkeys(name.rsplit("_", 2)[0] for name in speedups)
    rows = [(name, *(f"{speedups[f'{name}_{count}threads_speedup']:.2f}×" for count in THREADS)) for name in names]
    return Table(caption=caption, headers=("rows", "one thread", "two threads"), rows=rows)
