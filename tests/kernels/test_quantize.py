"""Every implementation of the quantizers gives the reference's bytes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.kernels import quantize
from holdfast.kernels.quantize import Method, Scheme, cpu, record_bytes, reference
from tests.kernels.quantize_rows import PUBLISHED, rows_for, schemes, trained_like, unusual

DIMS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 48, 63, 65, 100, 127, 128, 129, 250, 1023, 1024)


def assert_same_bytes(rows: np.ndarray, scheme: Scheme) -> np.ndarray:
    wanted = np.full((len(rows), record_bytes(scheme, rows.shape[1])), 0xAA, dtype=np.uint8)
    found = np.full_like(wanted, 0x55)
    assert reference.encode(rows, scheme, wanted) == cpu.encode(rows, scheme, found)
    different = np.flatnonzero((wanted != found).any(axis=1))
    assert not different.size, f"{scheme}, dim {rows.shape[1]}: row {different[0]}: {rows[different[0]]}"
    return wanted


def assert_same_rows(records: np.ndarray, scheme: Scheme, dim: int) -> None:
    wanted, found = (np.full((len(records), dim), value, dtype=np.float32) for value in (1, 2))
    reference.decode(records, scheme, dim, wanted)
    cpu.decode(records, scheme, dim, found)
    assert np.array_equal(wanted.view(np.uint32), found.view(np.uint32)), scheme


@pytest.mark.parametrize("scheme", schemes(), ids=str)
def test_numba_gives_the_references_bytes_at_every_dim(scheme: Scheme) -> None:
    for dim in DIMS:
        records = assert_same_bytes(rows_for(scheme, 150, dim, seed=dim), scheme)
        assert_same_rows(records, scheme, dim)


@pytest.mark.parametrize("bits", PUBLISHED)
def test_numba_gives_the_references_bytes_on_200_000_rows(bits: int) -> None:
    scheme = Scheme(method=Method.FITTED, bits=bits)
    assert_same_rows(assert_same_bytes(trained_like(200_000, 16, seed=bits), scheme), scheme, 16)
    bins, ratio = PUBLISHED[bits]
    greedy = Scheme(method=Method.GREEDY, bits=bits, num_bins=bins, ratio=ratio)
    assert_same_bytes(trained_like(40_000, 16, seed=bits), greedy)
    assert_same_bytes(trained_like(20_000, 16, seed=bits), Scheme(method=Method.KMEANS, bits=bits, iterations=15))


@pytest.mark.parametrize(("bits", "dim"), [(8, 16), (8, 17), (8, 31), (8, 64), (4, 32), (4, 33), (4, 64)])
def test_plain_grids_at_the_speed_of_memory_have_the_references_bytes(bits: int, dim: int) -> None:
    """Where all of sixteen rows have a grid; rows that have none come alone, in pairs, and at both ends."""
    scheme = Scheme(method=Method.ASYMMETRIC, bits=bits)
    rows = trained_like(20_005, dim, seed=dim)
    assert_same_bytes(rows, scheme)
    odd = unusual(dim, seed=dim)
    at = np.random.default_rng(dim).integers(0, len(rows), 300)
    rows[[0, len(rows) - 1, *at]] = odd[np.arange(302) % len(odd)]
    assert_same_rows(assert_same_bytes(rows, scheme), scheme, dim)
    assert_same_bytes(odd.repeat(16, axis=0), scheme)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bits", PUBLISHED)
def test_numba_gives_the_references_bytes_on_ten_million_rows(bits: int) -> None:
    """Whatever depends on the order of a sum flips a few rows in a million: fewer never show it."""
    bins, ratio = PUBLISHED[bits]
    greedy = Scheme(method=Method.GREEDY, bits=bits, num_bins=bins, ratio=ratio)
    for part in range(40):
        rows = trained_like(250_000, 16, seed=1000 * bits + part)
        assert_same_bytes(rows, Scheme(method=Method.FITTED, bits=bits))
        assert_same_bytes(rows, Scheme(method=Method.ASYMMETRIC, bits=bits))
        assert_same_bytes(rows, Scheme(method=Method.ASYMMETRIC, bits=8))
        assert_same_bytes(rows.reshape(-1, 32), Scheme(method=Method.ASYMMETRIC, bits=4))
        if part < 4:
            assert_same_bytes(rows, greedy)
            assert_same_bytes(rows, Scheme(method=Method.KMEANS, bits=bits, iterations=15))
            assert_same_bytes(rows.reshape(-1, 64), Scheme(method=Method.FITTED, bits=bits))


def test_records_depend_on_their_row_alone() -> None:
    rows = np.concatenate([trained_like(100, 24, seed=1), unusual(24, seed=1)])
    for scheme in schemes():
        together = quantize.encode(rows, scheme)
        alone = [quantize.encode(rows[i : i + 1], scheme) for i in range(len(rows))]
        assert np.array_equal(together.records, np.concatenate([each.records for each in alone])), scheme
        assert together.escaped == sum(each.escaped for each in alone) > 0


def test_threads_change_nothing() -> None:
    rows, scheme = trained_like(50_001, 16, seed=3), Scheme(method=Method.FITTED, bits=3)
    (one, escaped), (three, also) = quantize.encode(rows, scheme), quantize.encode(rows, scheme, threads=3)
    assert np.array_equal(one, three) and escaped == also
    assert np.array_equal(quantize.decode(one, scheme, 16), quantize.decode(one, scheme, 16, threads=3))


def test_arrays_that_must_not_be_written_are_read() -> None:
    rows = trained_like(40, 16, seed=4)
    records = quantize.encode(rows, Scheme(method=Method.ASYMMETRIC, bits=4)).records
    for array in (rows, records):
        array.flags.writeable = False
    for scheme in schemes():
        quantize.encode(rows, scheme)
    quantize.decode(records, Scheme(method=Method.ASYMMETRIC, bits=4), 16)


def test_rows_of_any_layout_are_read() -> None:
    rows, scheme = trained_like(90, 32, seed=5), Scheme(method=Method.FITTED, bits=4)
    for view in (rows[::3], rows[:, ::2], rows.T):
        records = quantize.encode(view, scheme).records
        assert np.array_equal(records, quantize.encode(view.copy(), scheme).records)
        assert np.array_equal(
            quantize.decode(records[::-2], scheme, view.shape[1]), quantize.decode(records, scheme, view.shape[1])[::-2]
        )


def test_no_rows() -> None:
    for scheme in schemes():
        records, _ = quantize.encode(np.empty((0, 8), dtype=np.float32), scheme)
        assert records.shape == (0, record_bytes(scheme, 8))
        assert quantize.decode(records, scheme, 8).shape == (0, 8)


@pytest.mark.parametrize("bits", PUBLISHED)
@pytest.mark.parametrize("dim", [8, 16, 64, 128])
def test_fitted_grids_lose_less_than_the_greedy_search(bits: int, dim: int) -> None:
    """Of normal rows with outliers; of more kinds in the benchmark."""
    draw = np.random.default_rng(dim)
    rows = draw.standard_normal((4000, dim), dtype=np.float32)
    rows[draw.random(rows.shape) < 0.02] *= 6
    bins, ratio = PUBLISHED[bits]
    greedy = Scheme(method=Method.GREEDY, bits=bits, num_bins=bins, ratio=ratio)
    losses = [mean_loss(rows, scheme) for scheme in (Scheme(method=Method.FITTED, bits=bits), greedy)]
    assert losses[0] < losses[1]
    assert losses[1] < mean_loss(rows, Scheme(method=Method.ASYMMETRIC, bits=bits))


def mean_loss(rows: np.ndarray, scheme: Scheme) -> float:
    back = quantize.decode(quantize.encode(rows, scheme).records, scheme, rows.shape[1])
    return float(np.linalg.norm(rows - back, axis=1).mean())


@pytest.mark.parametrize("bits", PUBLISHED)
def test_the_greedy_search_is_the_papers(bits: int) -> None:
    """Written down once more, in double precision, row by row: the loss is the same."""
    rows = trained_like(200, 64, seed=9)[1:200:3]
    bins, ratio = PUBLISHED[bits]
    losses = [greedy_loss(row.astype(np.float64), (1 << bits) - 1, bins, ratio) for row in rows]
    scheme = Scheme(method=Method.GREEDY, bits=bits, num_bins=bins, ratio=ratio)
    back = quantize.decode(quantize.encode(rows, scheme).records, scheme, 64)
    found = np.linalg.norm(rows - back, axis=1)
    assert np.median(np.abs(found / np.sqrt(losses) - 1)) < 0.003
    assert abs(found.sum() / np.sqrt(losses).sum() - 1) < 0.003


def greedy_loss(row: np.ndarray, top: int, bins: int, ratio: float) -> float:
    def loss(low: float, high: float) -> float:
        step = (high - low) / top
        return float(((row - low - step * np.clip(np.rint((row - low) / step), 0, top)) ** 2).sum())

    low, high = row.min(), row.max()
    bin_size = (high - low) / bins
    best, given_up = loss(low, high), 0
    while given_up < ratio * bins - 1e-9:
        raised, lowered = loss(low + bin_size, high), loss(low, high - bin_size)
        low, high = (low + bin_size, high) if raised < lowered else (low, high - bin_size)
        best, given_up = min(best, raised, lowered), given_up + 1
    return best


@pytest.mark.parametrize("bits", PUBLISHED)
@pytest.mark.parametrize("dim", [8, 16, 64, 128])
def test_kmeans_loses_less_than_any_grid_of_as_many_bits(bits: int, dim: int) -> None:
    """In the mean, and in more bytes; of normal rows with outliers."""
    draw = np.random.default_rng(dim)
    rows = draw.standard_normal((4000, dim), dtype=np.float32)
    rows[draw.random(rows.shape) < 0.02] *= 6
    losses = [mean_loss(rows, Scheme(method=Method.KMEANS, bits=bits, iterations=count)) for count in (15, 5, 1)]
    assert losses[0] <= losses[1] < losses[2] < mean_loss(rows, Scheme(method=Method.ASYMMETRIC, bits=bits))
    assert losses[0] < mean_loss(rows, Scheme(method=Method.FITTED, bits=bits))


@pytest.mark.parametrize("bits", PUBLISHED)
def test_kmeans_is_lloyds(bits: int) -> None:
    """Written down once more, in double precision, row by row: the loss is the same."""
    rows = trained_like(1000, 64, seed=9)[1:1000:3]
    wanted = np.array([lloyd_loss(row.astype(np.float64), 1 << bits, 15) for row in rows])
    scheme = Scheme(method=Method.KMEANS, bits=bits, iterations=15)
    found = np.linalg.norm(rows - quantize.decode(quantize.encode(rows, scheme).records, scheme, 64), axis=1)
    assert np.median(np.abs(found / wanted - 1)) < 0.005
    assert abs(np.mean(found / wanted) - 1) < 0.01  # a few rows end in another local optimum


def lloyd_loss(row: np.ndarray, clusters: int, iterations: int) -> float:
    low, high = row.min(), row.max()
    centroids = low + (np.arange(clusters) + 0.5) / clusters * (high - low)
    for _ in range(iterations):
        nearest = np.abs(row[:, None] - centroids).argmin(axis=1)
        for number in set(nearest):
            centroids[number] = row[nearest == number].mean()
    return float(np.sqrt((np.abs(row[:, None] - centroids).min(axis=1) ** 2).sum()))


def run_python(program: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.slow
def test_a_second_process_does_not_compile_again(tmp_path: Path) -> None:
    program = """
from holdfast.kernels.quantize import cpu, search, packing
print([sum(kernel.stats.cache_misses.values()) for kernel in (cpu._encode, search.fit, packing.pack)])
"""
    assert run_python(program, NUMBA_CACHE_DIR=str(tmp_path)) == "[1, 1, 1]"
    assert run_python(program, NUMBA_CACHE_DIR=str(tmp_path)) == "[0, 0, 0]"


def test_numpy_serves_where_numba_is_missing() -> None:
    program = """
import sys; sys.modules["numba"] = None
import numpy as np
from holdfast.kernels import quantize
scheme = quantize.Scheme(method=quantize.Method.FITTED, bits=2)
records, _ = quantize.encode(np.arange(8, dtype=np.float32)[None], scheme)
print(records.tobytes().hex(), quantize._kernels().__name__)
"""
    records, _ = quantize.encode(np.arange(8, dtype=np.float32)[None], Scheme(method=Method.FITTED, bits=2))
    assert run_python(program) == f"{records.tobytes().hex()} holdfast.kernels.quantize.reference"


def test_a_forked_child_can_encode() -> None:
    program = """
import os, numpy as np
from holdfast.kernels import quantize
rows = np.random.default_rng(0).standard_normal((40_000, 16), dtype=np.float32)
scheme = quantize.Scheme(method=quantize.Method.FITTED, bits=2)
wanted = quantize.encode(rows, scheme, threads=2).records
child = os.fork()
if not child:
    os._exit(0 if np.array_equal(quantize.encode(rows, scheme, threads=2).records, wanted) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(program) == "0"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.timeout(900)
def test_triton_gives_the_references_bytes() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    environment = {**os.environ, "TRITON_INTERPRET": "0" if device == "cuda" else "1"}
    program = Path(__file__).with_name("quantize_triton_check.py")
    subprocess.run([sys.executable, program, device], env=environment, check=True)
