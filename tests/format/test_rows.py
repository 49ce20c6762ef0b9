"""The ids of a chunk: stored as briefly as they can be, and checked against what the manifest says of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.format.rows import check_ids, chunk_ids, pack_ids

ascending = st.sets(st.integers(0, 2**33), min_size=1, max_size=30).map(sorted)


@given(ascending, st.booleans())
def test_ids_come_back_and_are_right(ids: list[int], in_order: bool) -> None:
    kind, packed = pack_ids(np.array(ids), in_order=in_order)
    found = chunk_ids(len(ids), ids[0], kind, memoryview(packed.tobytes()))
    assert found.tolist() == ids
    assert check_ids(found, ids[0], ids[-1]) is None


@given(ascending, st.data())
def test_ids_that_were_divided_into_segments_are_right_and_no_others(ids: list[int], data: st.DataObject) -> None:
    of_segment = data.draw(st.lists(st.integers(0, 2), min_size=len(ids), max_size=len(ids)))
    groups = [[each for each, number in zip(ids, of_segment, strict=True) if number == wanted] for wanted in range(3)]
    groups = [group for group in groups if group]
    arranged, segments = np.concatenate(groups), [len(group) for group in groups]
    assert check_ids(arranged, ids[0], ids[-1], segments) is None
    assert check_ids(arranged, ids[0] + 1, ids[-1], segments) is not None
    assert check_ids(arranged, ids[0], ids[-1] + 1, segments) is not None
    if len(groups[0]) > 1:
        arranged[[0, 1]] = arranged[[1, 0]]
        assert check_ids(arranged, ids[0], ids[-1], segments) is not None


@pytest.mark.parametrize(("ids", "segments"), [([1, 3, 3, 5], ()), ([1, 5, 3], ()), ([1, 3, 3, 5], (2, 2))])
def test_a_row_that_stands_twice_or_out_of_order_is_seen(ids: list[int], segments: tuple[int, ...]) -> None:
    assert check_ids(np.array(ids), 1, 5, segments) is not None
