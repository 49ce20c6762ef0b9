from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import DamagedData
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.chunk_check import check_places
from holdfast.format.document import seal, unseal
from holdfast.format.manifest import (
    BundleRef,
    Manifest,
    Place,
    RowsChunk,
    StateChunk,
    TablePart,
    TensorSpec,
    table_spec_from_json,
    table_spec_to_json,
)
from holdfast.format.manifest_check import bundle_numbers
from holdfast.format.state_pieces import Piece
from holdfast.types import ColumnSpec, TableSpec

shapes = st.lists(st.integers(0, 2**20), max_size=3).map(tuple)
dtypes = st.sampled_from(["F32", "BF16", "I64", "BOOL"])
slots = st.text().filter(lambda name: name not in ("ids", "weight") and not name.endswith(".escapes"))
columns = st.lists(slots, max_size=2, unique=True).flatmap(
    lambda names: st.tuples(
        *(
            st.builds(ColumnSpec, name=st.just(name), dtype=dtypes, row_shape=shapes)
            for name in ("weight", *sorted(names))
        )
    )
)
specs = st.builds(
    TableSpec,
    name=st.text(),
    rows=st.integers(0, 2**63 - 1),
    columns=columns,
)
HEAD_BYTES = 4096


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any that a writer could have written: chunks and state one after another in one bundle."""
    writing = _Writing()
    tensors = draw(st.lists(st.builds(TensorSpec, dtype=dtypes, shape=st.tuples(st.integers(1, 99))), min_size=1))
    state = [
        StateChunk(place=writing.place(-(-t.length // 8) * 8), pieces=(Piece(tensor=n, start=0, length=t.length),))
        for n, t in enumerate(tensors)
    ]
    tables = [
        draw(table_parts(spec, writing)) for spec in draw(st.lists(specs, max_size=3, unique_by=lambda s: s.name))
    ]
    world = draw(st.integers(1, 9))
    return Manifest(
        checkpoint=draw(st.text()),
        rank=draw(st.integers(0, world - 1)),
        world=world,
        tables=tuple(tables),
        tensors=tuple(tensors),
        state=tuple(state),
        bundles=(BundleRef(name="b", size_bytes=writing.offset, head_bytes=HEAD_BYTES, digest="d"),),
        full_bytes=draw(st.integers(0, 2**63 - 1)),
        replacing=draw(st.lists(st.text(), max_size=3, unique=True).map(tuple)),
    )


class _Writing:
    """Where the next chunk goes."""

    def __init__(self) -> None:
        self.offset, self.block = HEAD_BYTES, 0

    def place(self, length: int) -> Place:
        place = Place(bundle=0, offset=self.offset, length=length, block=self.block)
        self.offset, self.block = self.offset + length, self.block + -(-length // BLOCK_BYTES)
        return place


@st.composite
def table_parts(draw: st.DrawFn, spec: TableSpec, writing: _Writing) -> TablePart:
    cuts = sorted(draw(st.sets(st.integers(0, spec.rows), min_size=min(2, spec.rows + 1), max_size=4)))
    whole = draw(st.booleans())
    chunks = []
    for first, stop in pairwise(cuts):
        rows = stop - first if whole else draw(st.integers(1, stop - first))
        ids = None if rows == stop - first else draw(st.sampled_from(["U32", "U64"]))
        place = writing.place(8 * draw(st.integers(0, 2**18)))
        chunks.append(RowsChunk(place=place, rows=rows, first=first, last=stop - 1, ids=ids))
    return TablePart(spec=spec, start=cuts[0], stop=cuts[-1], whole=whole, chunks=tuple(chunks))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(manifests())
def test_every_manifest_comes_back(manifest: Manifest) -> None:
    assert Manifest.decode(manifest.encode(), name="x") == manifest


@given(st.permutations(range(40)))
def test_an_empty_chunk_may_start_where_another_one_does(order: list[int]) -> None:
    offsets = [HEAD_BYTES + number // 2 * BLOCK_BYTES for number in range(40)]  # two at each place, one of them empty
    lengths = [BLOCK_BYTES * (number % 2) for number in range(40)]
    columns = {
        "bundle": np.zeros(40, dtype=np.int64),
        "offset": np.array(offsets)[order],
        "length": np.array(lengths)[order],
        "block": np.arange(40)[order] // 2,
    }
    size = HEAD_BYTES + 20 * BLOCK_BYTES
    bundles = bundle_numbers((BundleRef(name="b", size_bytes=size, head_bytes=HEAD_BYTES, digest="d"),))
    check_places(columns, bundles)
    columns["length"][order.index(1)] *= 2
    with pytest.raises(ValueError, match="overlap"):
        check_places(columns, bundles)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs)
def test_every_table_spec_comes_back(spec: TableSpec) -> None:
    assert table_spec_from_json(table_spec_to_json(spec)) == spec


def test_a_tensor_without_dimensions_has_one_element() -> None:
    assert TensorSpec(dtype="F64", shape=()).length == 8
    assert TensorSpec(dtype="BF16", shape=(3, 2)).length == 12
    assert TensorSpec(dtype="F32", shape=(3, 0)).length == 0


EXAMPLE = Manifest(
    checkpoint="s",
    rank=0,
    world=1,
    tables=(
        TablePart(
            spec=TableSpec(name="emb", rows=3, columns=(ColumnSpec(name="weight", dtype="F32", row_shape=(2,)),)),
            start=0,
            stop=3,
            whole=True,
            chunks=(
                RowsChunk(place=Place(bundle=0, offset=4104, length=24, block=1), rows=3, first=0, last=2, ids=None),
            ),
        ),
    ),
    tensors=(TensorSpec(dtype="U8", shape=(2,)),),
    state=(
        StateChunk(place=Place(bundle=0, offset=4096, length=8, block=0), pieces=(Piece(tensor=0, start=0, length=2),)),
    ),
    bundles=(BundleRef(name="b", size_bytes=4128, head_bytes=4096, digest="d"),),
    full_bytes=26,
)


def test_sizes_are_sums_over_bundles_and_chunks() -> None:
    twice = replace(EXAMPLE, tables=EXAMPLE.tables * 2, bundles=EXAMPLE.bundles * 2)
    assert (EXAMPLE.size_bytes, EXAMPLE.rows_written) == (4128, 3)
    assert (twice.size_bytes, twice.rows_written) == (8256, 6)


def test_every_flipped_byte_and_truncation_is_damage() -> None:
    data = EXAMPLE.encode()
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ 0x20]) + data[position + 1 :]
        for damaged in (flipped, data[:position]):
            with pytest.raises(DamagedData):
                Manifest.decode(damaged, name="x")


def break_place(body: dict[str, Any]) -> None:
    body["tables"][0]["chunks"][0][0].pop()


def break_columns(body: dict[str, Any]) -> None:
    body["tables"][0]["columns"] = 3


def break_order(body: dict[str, Any]) -> None:
    body["tables"][0]["columns"] += [["sum", "F32", []], ["square", "F32", []]]


def break_bundles(body: dict[str, Any]) -> None:
    body["bundles"] = [["name", 1]]


def break_pieces(body: dict[str, Any]) -> None:
    del body["state"][0]["pieces"]


@pytest.mark.parametrize("breakage", [dict.clear, break_place, break_columns, break_order, break_bundles, break_pieces])
def test_a_sealed_manifest_with_malformed_fields_is_damage(breakage: Callable[[dict[str, Any]], None]) -> None:
    body = unseal("manifest", 1, EXAMPLE.encode(), name="x")
    breakage(body)
    with pytest.raises(DamagedData, match="malformed field"):
        Manifest.decode(seal("manifest", 1, body), name="x")
