"""Sets of runs: Numba and NumPy give the same bounds, which are those of sets of numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.kernels import run_sets
from holdfast.kernels.run_sets import Bounds, reference

cpu = pytest.importorskip("holdfast.kernels.run_sets.cpu")

ENDS = st.sets(st.integers(0, 120), max_size=40)


def bounds_of(ends: set[int]) -> Bounds:
    return np.array(sorted(ends)[: len(ends) // 2 * 2], np.int64)


def numbers(bounds: Bounds) -> set[int]:
    assert len(bounds) % 2 == 0 and (np.diff(bounds) > 0).all()
    return {each for start, end in bounds.reshape(-1, 2).tolist() for each in range(start, end)}


@given(ENDS, ENDS)
def test_runs_are_joined_cut_and_met_as_sets_are(first: set[int], second: set[int]) -> None:
    a, b = bounds_of(first), bounds_of(second)
    assert numbers(run_sets.union(a, b)) == numbers(a) | numbers(b)
    assert numbers(run_sets.intersection(a, b)) == numbers(a) & numbers(b)
    assert numbers(run_sets.less(a, b)) == numbers(a) - numbers(b)


@given(ENDS, ENDS)
def test_numba_gives_the_bounds_that_numpy_gives(first: set[int], second: set[int]) -> None:
    a, b = bounds_of(first), bounds_of(second)
    if len(a) and len(b):
        for name in ("union", "intersection", "less"):
            assert getattr(cpu, name)(a, b).tolist() == getattr(reference, name)(a, b).tolist()


def test_a_part_of_many_runs_leaves_the_others_as_they_are() -> None:
    many = np.arange(20_000, dtype=np.int64) * 3
    for part in (many[:2], many[9_000:9_002], many[-2:], many[100:-100]):
        rest = run_sets.less(many, part)
        assert len(rest) == len(many) - len(part)
        assert run_sets.intersection(rest, part).tolist() == []
        assert run_sets.union(rest, part).tolist() == many.tolist()


def test_sets_that_only_readers_have_are_taken() -> None:
    a = np.array([1, 4], np.int64)
    a.flags.writeable = False
    assert run_sets.less(np.array([0, 9], np.int64), a).tolist() == [0, 1, 4, 9]
