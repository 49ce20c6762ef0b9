"""What a round writes: bundles that anybody can read, and manifests that show the same checkpoint as before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.grid.bundles import Moved, Placed, bundle_names, chunks_of, put_bundle, rebuild, replacing_in
from holdfast.checkpoint.grid.index import ChunkKey
from holdfast.checkpoint.grid.round import Round
from holdfast.checkpoint.grid.split import Records
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.format.layout import chunk_bytes, chunk_columns
from holdfast.format.manifest import (
    ALIVE,
    BundleRef,
    Manifest,
    Place,
    RowsChunk,
    Segment,
    StateChunk,
    TablePart,
    TensorSpec,
)
from holdfast.format.state_pieces import Piece
from holdfast.storage import MemoryStore
from holdfast.types import ColumnSpec, TableSpec

WEIGHT = (ColumnSpec(name="weight", dtype="F32", row_shape=(3,)),)
SPECS = [TableSpec(name=name, rows=1000, columns=WEIGHT) for name in ("a", "b")]

# ---- manifests ----------------------------------------------------------------------------------------------------

later = st.lists(st.sampled_from("uvwxyz"), unique=True, max_size=5)  # names of checkpoints


def bundle(name: str) -> BundleRef:
    return BundleRef(name=name, size_bytes=2**20, head_bytes=4096, digest=name)


@st.composite
def segments(draw: st.DrawFn, checkpoints: int) -> tuple[Segment, ...]:
    """Living records first, then the last replaced; or none."""
    labels = draw(st.lists(st.integers(ALIVE, checkpoints - 1), unique=True, max_size=4))
    labels.sort(key=lambda label: checkpoints if label == ALIVE else label, reverse=True)
    return tuple(Segment(replaced=label, rows=draw(st.integers(1, 9))) for label in labels)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """One with chunks of two tables and of the state, scattered over a few bundles, arranged or not."""
    names = draw(st.lists(st.text("pqr", min_size=1, max_size=2), unique=True, min_size=1, max_size=4))
    replacing = tuple(draw(later))
    offset, last = 4096, -1

    def place() -> Place:
        nonlocal offset
        offset += 64
        return Place(bundle=draw(st.integers(0, len(names) - 1)), offset=offset, length=64, block=offset // 64)

    def chunk() -> RowsChunk:
        nonlocal last
        parts = draw(segments(len(replacing)))
        rows = sum(part.rows for part in parts) or draw(st.integers(1, 9))
        first = last + draw(st.integers(1, 9))
        last = first + rows
        through = draw(st.integers(0, len(replacing)))
        return RowsChunk(place=place(), rows=rows, first=first, last=last, ids="U32", segments=parts, through=through)

    tables = tuple(
        TablePart(
            spec=spec, start=0, stop=1000, whole=False, chunks=tuple(chunk() for _ in range(draw(st.integers(0, 4))))
        )
        for spec in SPECS
    )
    state = tuple(StateChunk(place=place(), pieces=(Piece(tensor=n, start=0, length=64),)) for n in range(2))
    return Manifest(
        checkpoint="c",
        rank=0,
        world=1,
        tables=tables,
        tensors=(TensorSpec(dtype="U8", shape=(64,)),) * 2,
        state=state,
        bundles=tuple(map(bundle, names)),
        full_bytes=1000,
        replacing=replacing,
    )


def on_disk(manifest: Manifest) -> list[list[tuple[str, int, RowsChunk]]]:
    """Of each table, every chunk with where it lies, however bundles are numbered."""
    return [
        [(p.bundle.name, p.chunk.place.offset, _anywhere(p.chunk)) for p in chunks_of(manifest, part)]
        for part in manifest.tables
    ]


def _anywhere(chunk: RowsChunk) -> RowsChunk:
    return dataclasses.replace(chunk, place=dataclasses.replace(chunk.place, bundle=0))


@given(manifests(), later)
def test_a_chunk_that_is_not_moved_gives_every_later_checkpoint_the_same_rows(
    manifest: Manifest, replacing: list[str]
) -> None:
    rebuilt = rebuild(manifest, {}, replacing)
    common = replacing_in(manifest, replacing)
    for old, new in zip(manifest.tables, rebuilt.tables, strict=True):
        ordered = sorted(chunks_of(manifest, old), key=lambda placed: placed.chunk.first)
        for before, after in zip(ordered, chunks_of(rebuilt, new), strict=True):
            assert before.key == after.key and before.bundle == after.bundle
            assert after.chunk.through <= len(replacing)
            for count in range(len(replacing) + 1):  # as checkpoints of the timeline see it, the newest last
                seen = [
                    placed.chunk.visible(replacing_in(found, replacing[:count]))
                    for placed, found in ((before, manifest), (after, rebuilt))
                ]
                assert seen[0] == seen[1]
            for count in range(len(manifest.replacing) + 1):  # one that was left may have more to read, never less
                left = manifest.replacing[:count]
                assert after.chunk.visible(replacing_in(rebuilt, left)) >= before.chunk.visible(count)
                assert after.chunk.through <= common or after.chunk.through <= before.chunk.through


@given(manifests(), later, st.data())
def test_moved_chunks_stand_where_they_went_and_the_rest_where_it_was(
    manifest: Manifest, replacing: list[str], data: st.DataObject
) -> None:
    placed = [each for part in manifest.tables for each in chunks_of(manifest, part)]
    moved: Mapping[ChunkKey, list[Placed]] = {
        each.key: [
            Placed(bundle=bundle(f"new {number}"), chunk=dataclasses.replace(each.chunk, segments=(), first=first))
            for first in data.draw(st.lists(st.integers(0, 90), max_size=2))
        ]
        for number, each in enumerate(placed)
        if data.draw(st.booleans())
    }
    rebuilt = rebuild(manifest, moved, replacing)
    stays = on_disk(rebuild(manifest, {}, replacing))
    for before, after in zip(stays, on_disk(rebuilt), strict=True):
        expected = [item for item in before if item[:2] not in moved]
        for item in before:
            expected += [(p.bundle.name, p.key[1], _anywhere(p.chunk)) for p in moved.get(item[:2], [])]
        assert sorted(map(repr, after)) == sorted(map(repr, expected))
        assert [chunk.first for _, _, chunk in after] == sorted(chunk.first for _, _, chunk in after)
    chunks = [chunk for part in rebuilt.tables for chunk in part.chunks]
    used = [rebuilt.bundles[chunk.place.bundle].name for chunk in (*rebuilt.state, *chunks)]
    assert [found.name for found in rebuilt.bundles] == list(dict.fromkeys(used))  # each once, and none for nothing
    assert bundle_names([rebuilt]) == set(used)


@given(manifests(), later)
def test_a_round_changes_nothing_but_where_rows_lie(manifest: Manifest, replacing: list[str]) -> None:
    rebuilt = rebuild(manifest, {}, replacing)
    same = ("checkpoint", "rank", "world", "tensors", "full_bytes")
    assert all(getattr(rebuilt, name) == getattr(manifest, name) for name in same)
    assert rebuilt.replacing == tuple(replacing)
    for old, new in zip(manifest.state, rebuilt.state, strict=True):
        assert old.pieces == new.pieces and old.place.offset == new.place.offset
        assert manifest.bundles[old.place.bundle] == rebuilt.bundles[new.place.bundle]
    assert Manifest.decode(rebuilt.encode(), name="part") == rebuilt
    assert rebuild(rebuilt, {}, replacing) == rebuilt


# ---- bundles ------------------------------------------------------------------------------------------------------


def moved_records(ids: list[int], source: int) -> Moved:
    placed = chunk_columns(WEIGHT, len(ids), "U32")
    data = np.zeros(chunk_bytes(placed), np.uint8)
    data[: placed[0].length] = (np.array(ids) - min(ids)).astype("<u4").view(np.uint8)
    weight = np.arange(3 * len(ids), dtype="<f4") + source
    data[placed[1].offset : placed[1].offset + placed[1].length] = weight.view(np.uint8)
    records = Records(data=data, rows=len(ids), first=min(ids), last=max(ids), ids="U32", segments=())
    return Moved(cohort=0, source=("s", source), spec=SPECS[0], records=records, codec="exact", through=0)


def test_a_bundle_of_moved_records_is_verified_block_by_block_and_read_by_safetensors() -> None:
    store = MemoryStore()
    moved = [moved_records([3, 5, 99], 0), moved_records([7], 1), moved_records(list(range(30_000)), 2)]
    placed, _ = put_bundle(store, "data/x/rows", moved)
    fetcher = Fetcher(store)
    for each, found in zip(moved, placed, strict=True):
        assert fetcher.chunk(found.bundle, found.chunk.place) == each.records.data.data
        assert (found.chunk.rows, found.chunk.first, found.chunk.last) == (each.records.rows, *_edges(each.records))
    tensors = safetensors.numpy.load(bytes(store.get("data/x/rows")))
    for number, each in enumerate(moved):
        expected = np.arange(3 * each.records.rows, dtype="<f4").reshape(-1, 3) + number
        assert np.array_equal(tensors[f"{number}/a/weight"], expected)


def _edges(records: Records) -> tuple[int, int]:
    return records.first, records.last


def test_more_replaced_chunks_than_one_header_takes_go_into_several_bundles() -> None:
    store = MemoryStore()
    work = Round(store, "s000000000001-t00001-aa", rank=0)
    work.add([], [moved_records([number % 100], number) for number in range(10_001)], together=True)
    work.finish()
    bundles = {placed.bundle.name for became in work.moved.values() for placed in became}
    assert len(bundles) == 2 and {info.name for info in store.list("data/")} == bundles
    fetcher = Fetcher(store)
    for number in (0, 9_999, 10_000):
        (placed,) = work.moved["s", number]
        assert (
            fetcher.chunk(placed.bundle, placed.chunk.place) == moved_records([number % 100], number).records.data.data
        )
