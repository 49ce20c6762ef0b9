from __future__ import annotations

from benchmarks.claims import llvm


def test_kernels_written_for_llvm_give_the_bytes_of_their_twins_in_plain_numba() -> None:
    figures = llvm.run("tiny").figures  # which compares them
    assert len(figures) == 1 + len(llvm.THREADS) * len(llvm.PLAIN_BITS + llvm.FITTED_BITS)
    assert figures["lanes_least_speedup"] == min(figures.values(), key=float)
