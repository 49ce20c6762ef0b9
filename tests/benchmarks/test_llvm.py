from __future__ import annotations

from benchmarks.claims import llvm


def test_kernels_written_for_llvm_give_the_bytes_of_their_twins_in_plain_numba() -> None:
    figures = llvm.run("tiny").figures  # which compares them
    encoded = [float(value) for name, value in figures.items() if name.startswith(("plain", "fitted"))]
    gathered = [float(value) for name, value in figures.items() if name.startswith("gather")]
    assert len(encoded) == len(llvm.THREADS) * len(llvm.PLAIN_BITS + llvm.FITTED_BITS)
    assert len(gathered) == len(llvm.THREADS) * len(llvm.GATHERED_DIMS)
    assert (figures["lanes_least_speedup"], figures["prefetch_most_speedup"]) == (min(encoded), max(gathered))
