"""Compares the Triton quantizers with the reference, without Numba and pytest, which a GPU machine may lack.

On a GPU: PYTHONPATH=src:. python tests/kernels/quantize_triton_check.py cuda        (and their speed)
Without:  PYTHONPATH=src:. TRITON_INTERPRET=1 python tests/kernels/quantize_triton_check.py cpu
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # so that it runs from anywhere

from holdfast.kernels.quantize import Method, Scheme, gpu, record_bytes, reference
from tests.kernels.quantize_rows import rows_for, schemes, trained_like

DIMS = {"cpu": (3, 20), "cuda": (3, 17, 64)}  # the interpreter is slow
MORE_DIMS = (2, 5, 8, 16, 31, 100, 128, 250, 1024)
MANY_ROWS = 12_000_000  # at least, on a GPU
TABLE_BYTES = 10_240_000_000
PROCESSES = 8  # that compile


def assert_same(rows: np.ndarray, scheme: Scheme, device: str, ids: np.ndarray | None = None) -> None:
    chosen = rows if ids is None else rows[ids]
    wanted = np.empty((len(chosen), record_bytes(scheme, rows.shape[1])), dtype=np.uint8)
    reference.encode(chosen, scheme, wanted)
    places = None if ids is None else torch.from_numpy(ids).to(device)
    out = torch.full(wanted.shape, 0x55, dtype=torch.uint8, device=device)
    found = gpu.encode(torch.from_numpy(rows).to(device), scheme, places, out).cpu().numpy()
    different = np.flatnonzero((found != wanted).any(axis=1))
    assert not different.size, (
        f"{scheme}, dim {rows.shape[1]}: {len(different)} rows differ, first {different[0]}: {chosen[different[0]]}, "
        f"{found[different[0]].tolist()} and not {wanted[different[0]].tolist()}"
    )


def check_scheme(scheme: Scheme, device: str, count: int) -> None:
    """At some dims; fitted grids, which are the default, at many."""
    more = MORE_DIMS if scheme.method is Method.FITTED and device == "cuda" else ()
    for dim in (*DIMS[device], *more):
        rows = rows_for(scheme, count, dim, seed=dim)
        assert_same(rows, scheme, device)
        assert_same(rows, scheme, device, np.random.default_rng(1).integers(0, len(rows), 37))
    print(f"same bytes: {scheme}", flush=True)


def check_many_rows(bits: int) -> None:
    for seed in range(MANY_ROWS // 3 // 500_000 + 1):
        assert_same(trained_like(500_000, 16, seed=seed), Scheme(method=Method.FITTED, bits=bits), "cuda")
    print(f"same bytes: {MANY_ROWS // 3} rows and more in {bits} bits", flush=True)


def measure(scheme: Scheme, dim: int) -> None:
    """A quarter of the rows, gathered out of 10 GB."""
    from triton.testing import do_bench

    table = torch.randn(TABLE_BYTES // (4 * dim), dim, device="cuda")
    ids = torch.randperm(len(table), device="cuda")[: len(table) // 4].sort().values
    out = gpu.encode(table, scheme, ids)
    milliseconds = do_bench(lambda: gpu.encode(table, scheme, ids, out), return_mode="median")
    rate = len(ids) * dim * 4 / milliseconds / 1e6
    print(
        f"{scheme.method.value:10} {scheme.bits} bits, dim {dim:3}: {milliseconds:7.2f} ms, {rate:6.0f} GB/s",
        flush=True,
    )


def main(device: str) -> None:
    sys.modules["numba"] = None  # type: ignore[assignment]
    made = [scheme for scheme in schemes() if scheme.method not in (Method.LOGARITHMIC, Method.KMEANS)]
    if device == "cpu":
        for scheme in made:
            check_scheme(scheme, device, count=4)
        return
    for scheme in made:
        for dim in (64, 128):
            measure(scheme, dim)
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(check_scheme, scheme, device, 2000) for scheme in made]
        jobs += [pool.submit(check_many_rows, bits) for bits in (2, 3, 4)]
        for job in jobs:
            job.result()


if __name__ == "__main__":
    main(sys.argv[1])
