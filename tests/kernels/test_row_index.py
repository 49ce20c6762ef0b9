"""An index of rows: each stands where it came first among those of its slice, in both implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernels.row_index import RowIndex, cpu, reference
from holdfast.kernels.row_index.reference import ALL

SLICES = 3
kinds = pytest.mark.parametrize("kind", [reference.RowIndex, cpu.RowIndex])
pushes = st.lists(st.lists(st.integers(0, 60), unique=True).map(sorted), max_size=6)


def slice_of(row: int) -> int:
    return row // 4 % SLICES


def enter(index: RowIndex, rows: list[int]) -> list[tuple[int, bool]]:
    """Where each stands, and whether it had come before."""
    found = index.enter(np.array(rows, np.int64), np.array([slice_of(row) for row in rows], np.int64))
    assert set(found.known.tolist()) <= {0, int(ALL)}
    return list(zip(found.offsets.tolist(), (found.known == ALL).tolist(), strict=True))


@kinds
@settings(deadline=None)
@given(before=pushes, after=pushes)
def test_rows_stand_in_the_order_in_which_they_came(
    kind: type[RowIndex], before: list[list[int]], after: list[list[int]]
) -> None:
    index = kind(SLICES)  # type: ignore[call-arg]
    for rows in before:
        enter(index, rows)
    index.clear()
    stands: list[list[int]] = [[] for _ in range(SLICES)]
    for rows in after:
        known = [row in stands[slice_of(row)] for row in rows]
        for row, is_known in zip(rows, known, strict=True):
            stands[slice_of(row)] += [] if is_known else [row]
        places = [stands[slice_of(row)].index(row) for row in rows]
        assert enter(index, rows) == list(zip(places, known, strict=True))
        assert index.counts.tolist() == [len(each) for each in stands]


@pytest.mark.parametrize("step", [1, 64, 1 << 12, 1 << 40])
def test_many_rows_stand_in_both_alike(step: int) -> None:
    draw, both = np.random.default_rng(step), (reference.RowIndex(SLICES), cpu.RowIndex(SLICES))
    for _ in range(5):
        rows = np.unique(draw.integers(0, 9_000, 4_000)) * step
        slices = rows // step % SLICES
        one, other = (index.enter(rows, slices) for index in both)
        np.testing.assert_array_equal(one.offsets, other.offsets)
        np.testing.assert_array_equal(one.known, other.known)
    assert both[0].counts.tolist() == both[1].counts.tolist()


def test_a_large_difference_leaves_no_large_table_behind() -> None:
    index = cpu.RowIndex(SLICES)
    first = len(index._table)
    for rows in (np.arange(100_000), np.arange(10)):
        index.enter(rows, rows % SLICES)
        index.clear()
    assert len(index._table) == first
    assert enter(index, [1, 2]) == [(0, False), (1, False)]
