"""Fewer points, the same extremes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.report.thinning import thinned

VALUES = st.lists(st.integers(-1000, 1000), max_size=300)


@given(VALUES, st.integers(2, 60))
def test_few_points_in_their_order_hold_both_extremes(values: list[int], most: int) -> None:
    points = list(enumerate(values))
    kept = thinned(points, lambda point: point[1], most)
    assert len(kept) <= most
    assert kept == sorted(kept)
    assert set(kept) <= set(points)
    if values:
        assert {min(values), max(values)} <= {value for _, value in kept}


@given(VALUES)
def test_what_can_be_drawn_is_drawn_whole(values: list[int]) -> None:
    assert thinned(values, float, len(values) + 1) == values
