from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.format.dtypes import DTYPE_CODES
from holdfast.format.layout import (
    ALIGNMENT,
    chunk_bytes,
    chunk_columns,
    ids_dtype,
    padded,
    row_bytes,
    rows_that_fit,
)
from holdfast.types import ColumnSpec

column_specs = st.builds(
    lambda dtype, shape: (dtype, tuple(shape)),
    st.sampled_from(sorted(DTYPE_CODES.values())),
    st.lists(st.integers(0, 9), max_size=2),
)
columns = st.lists(column_specs, min_size=1, max_size=5).map(
    lambda specs: tuple(ColumnSpec(name=f"c{i}", dtype=d, row_shape=s) for i, (d, s) in enumerate(specs))
)
stored_ids = st.sampled_from([None, "U32", "U64"])


@settings(max_examples=50, deadline=None)
@given(columns, st.integers(0, 10_000), stored_ids)
def test_columns_never_overlap_and_leave_no_more_than_padding_between_them(
    specs: tuple[ColumnSpec, ...], rows: int, ids: str | None
) -> None:
    placed = chunk_columns(specs, rows, ids)
    assert [column.name for column in placed] == ([] if ids is None else ["ids"]) + [spec.name for spec in specs]
    assert placed[0].offset == 0
    for column, following in itertools.pairwise(placed):
        assert following.offset % ALIGNMENT == 0
        assert 0 <= following.offset - (column.offset + column.length) < ALIGNMENT
    end = placed[-1].offset + placed[-1].length
    assert end <= chunk_bytes(placed) < end + ALIGNMENT
    assert chunk_bytes(placed) % ALIGNMENT == 0


@settings(max_examples=50, deadline=None)
@given(columns, st.integers(0, 10_000), stored_ids)
def test_columns_hold_every_row_once(specs: tuple[ColumnSpec, ...], rows: int, ids: str | None) -> None:
    placed = chunk_columns(specs, rows, ids)
    assert all(column.shape[0] == rows for column in placed)
    assert sum(column.length for column in placed if column.name != "ids") == rows * row_bytes(specs)


@settings(max_examples=50, deadline=None)
@given(columns, st.integers(-10, 100_000), stored_ids)
def test_rows_that_fit_never_overflow_the_room(specs: tuple[ColumnSpec, ...], room: int, ids: str | None) -> None:
    rows = rows_that_fit(specs, room, ids)
    assert rows >= 0
    if rows:
        assert chunk_bytes(chunk_columns(specs, rows, ids)) <= room


@settings(max_examples=50, deadline=None)
@given(columns, st.integers(0, 100_000), stored_ids)
def test_rows_that_fit_waste_less_than_the_padding_and_a_row(
    specs: tuple[ColumnSpec, ...], room: int, ids: str | None
) -> None:
    per_row = row_bytes(specs) + {None: 0, "U32": 4, "U64": 8}[ids]
    assume(per_row > 0)
    wasted = room - rows_that_fit(specs, room, ids) * per_row
    assert wasted < per_row + ALIGNMENT * (len(specs) + 1) or rows_that_fit(specs, room, ids) == 0


def test_room_that_was_measured_for_wide_ids_is_enough_for_narrow_ones() -> None:
    specs = (ColumnSpec(name="weight", dtype="F32", row_shape=(3,)),)
    rows = rows_that_fit(specs, 4096, "U64")
    assert chunk_bytes(chunk_columns(specs, rows, "U32")) <= chunk_bytes(chunk_columns(specs, rows, "U64")) <= 4096


@pytest.mark.parametrize(
    ("first", "last", "dtype"),
    [(0, 0, "U32"), (0, 2**32 - 1, "U32"), (0, 2**32, "U64"), (2**40, 2**40 + 2**32 - 1, "U32"), (5, 2**62, "U64")],
)
def test_ids_are_as_wide_as_the_span_of_a_chunk_needs(first: int, last: int, dtype: str) -> None:
    assert ids_dtype(first, last) == dtype


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**60))
def test_padding_rounds_up_to_the_alignment(length: int) -> None:
    assert padded(length) % ALIGNMENT == 0
    assert length <= padded(length) < length + ALIGNMENT


def test_a_column_cannot_take_the_name_of_the_ids() -> None:
    slot = ColumnSpec(name="ids", dtype="I64", row_shape=())
    with pytest.raises(ConfigurationError, match="'ids'"):
        chunk_columns((slot,), 3, None)
