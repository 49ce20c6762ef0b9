"""Boxes of tensors: what two have in common, and whether some make up a whole."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.boxes import Box, are_tiles


def box(*spans: tuple[int, int]) -> Box:
    return Box(offsets=tuple(start for start, _ in spans), sizes=tuple(size for _, size in spans))


boxes = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=2).map(lambda each: box(*each))


@given(boxes, boxes)
def test_what_two_boxes_share_is_what_both_hold(one: Box, other: Box) -> None:
    numbers = np.arange(100).reshape(10, 10)
    whole = Box.whole(numbers.shape)
    both = set(numbers[one.within(whole)].flat) & set(numbers[other.within(whole)].flat)
    shared = one.shared(other)
    assert (set(numbers[shared.within(whole)].flat) if shared is not None else set()) == both
    if shared is not None:
        inside = numbers[one.within(whole)][shared.within(one)]
        assert inside.tolist() == numbers[shared.within(whole)].tolist()


@given(st.lists(st.integers(1, 3), max_size=3), st.lists(st.integers(1, 3), max_size=3), st.randoms())
def test_a_grid_of_boxes_is_tiles_until_one_is_missing_doubled_or_moved(
    rows: list[int], columns: list[int], random: object
) -> None:
    heights, widths = (
        [(sum(lengths[:number]), length) for number, length in enumerate(lengths)] for lengths in (rows, columns)
    )
    tiles = [box(height, width) for height, width in itertools.product(heights, widths)]
    shape = (sum(rows), sum(columns))
    assert are_tiles(shape, tiles)
    if tiles:
        assert not are_tiles(shape, tiles[1:])
        assert not are_tiles(shape, [*tiles, tiles[0]])
        moved = Box(offsets=(tiles[0].offsets[0] + 1, tiles[0].offsets[1]), sizes=tiles[0].sizes)
        assert not are_tiles(shape, [moved, *tiles[1:]])


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        ((), [Box(offsets=(), sizes=())]),
        ((0, 3), []),
        ((4,), [box((0, 4))]),
    ],
)
def test_tensors_without_dimensions_or_elements_have_tiles_too(shape: tuple[int, ...], tiles: list[Box]) -> None:
    assert are_tiles(shape, tiles)


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        ((0, 3), [box((0, 0), (0, 3))]),
        ((4,), [box((0, 4), (0, 1))]),
        ((4, 4), [box((0, 2), (0, 4)), box((2, 2), (0, 2))]),
        ((4, 4), [box((0, 2), (0, 4)), box((2, 2), (0, 2)), box((2, 2), (1, 3))]),
        ((4,), [box((0, 3))]),
    ],
)
def test_what_leaves_gaps_or_overlaps_is_no_tiles(shape: tuple[int, ...], tiles: list[Box]) -> None:
    assert not are_tiles(shape, tiles)
