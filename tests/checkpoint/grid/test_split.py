"""Splitting a chunk moves each of its records, whole, to where its label says, and changes none."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.checkpoint.grid.split import Records, add_labels, known_labels, split
from holdfast.errors import DamagedData
from holdfast.format.layout import IDS, chunk_bytes, chunk_columns, ids_dtype
from holdfast.format.manifest import ALIVE, Place, RowsChunk, Segment
from holdfast.format.rows import ID_TYPES, chunk_ids
from holdfast.types import ColumnSpec

Record = tuple[int, tuple[bytes, ...]]  # its row and the bytes of each of its columns

columns = st.lists(
    st.builds(
        lambda dtype, shape: (dtype, tuple(shape)),
        st.sampled_from(["F32", "BF16", "F64", "U8"]),
        st.lists(st.integers(0, 3), max_size=2),
    ),
    min_size=1,
    max_size=3,
).map(lambda specs: tuple(ColumnSpec(name=f"c{n}", dtype=d, row_shape=s) for n, (d, s) in enumerate(specs)))
row_ids = st.lists(st.integers(0, 40) | st.integers(2**33, 2**33 + 40), min_size=1, max_size=30, unique=True)
labels_of = st.integers(ALIVE, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A chunk of random records."""

    columns: tuple[ColumnSpec, ...]
    chunk: RowsChunk
    data: memoryview
    ids: NDArray[np.int64]


def make_chunk(columns: tuple[ColumnSpec, ...], ids: list[int], segments: tuple[Segment, ...] = ()) -> Sample:
    """A chunk with these rows in this order."""
    first, last = min(ids), max(ids)
    stored = None if (np.diff(ids) == 1).all() else ids_dtype(first, last)
    placed = chunk_columns(columns, len(ids), stored)
    data = np.frombuffer(Random(len(ids)).randbytes(chunk_bytes(placed)), dtype=np.uint8).copy()
    if stored:
        data[: placed[0].length] = (np.array(ids) - first).astype(ID_TYPES[stored]).view(np.uint8)
    chunk = RowsChunk(
        place=Place(bundle=0, offset=0, length=len(data), block=0),
        rows=len(ids),
        first=first,
        last=last,
        ids=stored,
        segments=segments,
    )
    return Sample(columns=columns, chunk=chunk, data=memoryview(data), ids=np.array(ids, dtype=np.int64))


def records_of(
    columns: tuple[ColumnSpec, ...], rows: int, first: int, ids: str | None, data: memoryview
) -> list[Record]:
    """A chunk's records in their order, taken apart by the layout alone."""
    placed = [column for column in chunk_columns(columns, rows, ids) if column.name != IDS]
    found = []
    for number, row in enumerate(chunk_ids(rows, first, ids, data).tolist()):
        widths = [(column.offset, column.length // rows) for column in placed]
        found.append((row, tuple(bytes(data[at + number * width :][:width]) for at, width in widths)))
    return found


def before(sample: Sample) -> dict[int, Record]:
    chunk = sample.chunk
    return {each[0]: each for each in records_of(sample.columns, chunk.rows, chunk.first, chunk.ids, sample.data)}


def after(sample: Sample, records: Records | None) -> list[Record]:
    if records is None:
        return []
    return records_of(sample.columns, records.rows, records.first, records.ids, memoryview(records.data))


@given(columns, row_ids, st.booleans(), st.data())
def test_living_and_replaced_records_go_apart_unchanged_and_in_order(
    columns: tuple[ColumnSpec, ...], ids: list[int], in_order: bool, data: st.DataObject
) -> None:
    sample = make_chunk(columns, sorted(ids) if in_order else ids)
    labels = np.array([data.draw(labels_of) for _ in ids], dtype=np.int32)
    label_of = dict(zip(sample.ids.tolist(), labels.tolist(), strict=True))
    alive, dead = split(columns, sample.chunk, sample.data, sample.ids, labels)

    truth = before(sample)
    assert after(sample, alive) == [truth[row] for row in sorted(truth) if label_of[row] == ALIVE]
    replaced = sorted((row for row in truth if label_of[row] != ALIVE), key=lambda row: (-label_of[row], row))
    assert after(sample, dead) == [truth[row] for row in replaced]
    if alive is not None:
        assert alive.segments == ()
    if dead is not None:
        assert [s.replaced for s in dead.segments for _ in range(s.rows)] == [label_of[row] for row in replaced]
        assert len({segment.replaced for segment in dead.segments}) == len(dead.segments)


@given(columns, row_ids)
def test_a_half_states_its_own_rows_and_takes_no_more_bytes_than_they_need(
    columns: tuple[ColumnSpec, ...], ids: list[int]
) -> None:
    sample = make_chunk(columns, ids)
    labels = np.where(np.arange(len(ids)) % 2, ALIVE, 0).astype(np.int32)
    for records in split(columns, sample.chunk, sample.data, sample.ids, labels):
        if records is not None:
            rows = [row for row, _ in after(sample, records)]
            assert (records.first, records.last, records.rows) == (min(rows), max(rows), len(rows))
            assert records.ids == ids_dtype(records.first, records.last)
            assert records.data.nbytes == chunk_bytes(chunk_columns(columns, len(rows), records.ids))


@given(columns, row_ids, st.data())
def test_what_was_split_off_can_be_split_again(
    columns: tuple[ColumnSpec, ...], ids: list[int], data: st.DataObject
) -> None:
    """As when training goes back: some of the replaced records live again."""
    sample = make_chunk(columns, ids)
    labels = np.array([data.draw(st.integers(0, 4)) for _ in ids], dtype=np.int32)
    _, dead = split(columns, sample.chunk, sample.data, sample.ids, labels)
    assert dead is not None
    place = Place(bundle=0, offset=0, length=dead.data.nbytes, block=0)
    chunk = RowsChunk(
        place=place, rows=dead.rows, first=dead.first, last=dead.last, ids=dead.ids, segments=dead.segments, through=5
    )
    common = data.draw(st.integers(0, 5))
    moved = memoryview(dead.data)
    back = chunk_ids(chunk.rows, chunk.first, chunk.ids, moved)
    alive, still_dead = split(columns, chunk, moved, back, known_labels(chunk, common))
    label_of = dict(zip(ids, labels.tolist(), strict=True))
    truth = before(sample)
    assert after(sample, alive) == [truth[row] for row in sorted(truth) if label_of[row] >= common]
    assert (alive.rows if alive else 0) == chunk.visible(common)
    assert {row for row, _ in after(sample, still_dead)} == {row for row in truth if label_of[row] < common}


# ---- labels -------------------------------------------------------------------------------------------------------

segments = st.lists(st.builds(lambda r, n: Segment(replaced=r, rows=n), labels_of, st.integers(1, 5)), max_size=5).map(
    lambda found: tuple(sorted(found, key=lambda s: -s.replaced if s.replaced != ALIVE else -99))
)


def chunk_of(segments: tuple[Segment, ...], rows: int | None = None) -> RowsChunk:
    count = sum(segment.rows for segment in segments) if rows is None else rows
    place = Place(bundle=0, offset=0, length=0, block=0)
    return RowsChunk(place=place, rows=count, first=0, last=max(0, count - 1), ids="U32", segments=segments)


@given(segments, st.integers(0, 6))
def test_segments_say_who_replaced_a_record_and_later_ones_belong_to_another_timeline(
    segments: tuple[Segment, ...], replacing: int
) -> None:
    expected = [s.replaced if s.replaced < replacing else ALIVE for s in segments for _ in range(s.rows)]
    assert known_labels(chunk_of(segments), replacing).tolist() == expected
    assert known_labels(chunk_of((), rows=7), replacing).tolist() == [ALIVE] * 7


@given(segments, st.integers(0, 6))
def test_what_a_checkpoint_needs_comes_first_and_ends_where_the_replaced_begin(
    segments: tuple[Segment, ...], replacing: int
) -> None:
    chunk = chunk_of(segments)
    needed = [not 0 <= s.replaced < replacing for s in segments for _ in range(s.rows)]
    assert chunk.visible(replacing) == sum(needed)
    assert all(needed[: chunk.visible(replacing)])
    assert chunk.visible(0) == chunk.alive == chunk.rows
    assert chunk_of((), rows=7).visible(replacing) == 7


@given(row_ids, st.data())
def test_labels_are_given_to_the_rows_that_were_lost(ids: list[int], data: st.DataObject) -> None:
    lost = {row: data.draw(labels_of, label=f"row {row}") for row in ids}
    by = [(label, np.array([r for r in ids if lost[r] == label], dtype=np.int64)) for label in range(5)]
    known = np.full(len(ids), ALIVE, dtype=np.int32)
    found = add_labels(known, np.array(ids, dtype=np.int64), by, name="a bundle")
    assert found.tolist() == [lost[row] for row in ids]
    assert (known == ALIVE).all()


@given(row_ids, st.integers(0, 50) | st.integers(2**33, 2**33 + 50))
def test_a_chunk_that_does_not_hold_what_it_lost_is_damaged(ids: list[int], stranger: int) -> None:
    lost = [(0, np.array([*ids[:2], stranger], dtype=np.int64))]
    known = np.full(len(ids), ALIVE, dtype=np.int32)
    if stranger in ids:
        add_labels(known, np.array(ids, dtype=np.int64), lost, name="a bundle")
    else:
        with pytest.raises(DamagedData, match="a bundle: does not hold the rows it is recorded to hold"):
            add_labels(known, np.array(ids, dtype=np.int64), lost, name="a bundle")


def test_rows_that_live_again_after_going_back_are_in_the_order_of_their_ids() -> None:
    """Two checkpoints of a timeline that was left had replaced rows 5, 6 and rows 1, 2."""
    weight = (ColumnSpec(name="weight", dtype="F32", row_shape=(1,)),)
    sample = make_chunk(weight, [5, 6, 1, 2], (Segment(replaced=1, rows=2), Segment(replaced=0, rows=2)))
    alive, dead = split(weight, sample.chunk, sample.data, sample.ids, known_labels(sample.chunk, replacing=0))
    assert alive is not None and dead is None
    assert [row for row, _ in after(sample, alive)] == [1, 2, 5, 6]
