from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import DamagedData
from holdfast.format.document import seal, unseal
from holdfast.format.manifest import (
    BundleRef,
    Manifest,
    Piece,
    Place,
    RowsChunk,
    StateChunk,
    TablePart,
    TensorSpec,
    table_spec_from_json,
    table_spec_to_json,
)
from holdfast.types import ColumnSpec, TableSpec

counts = st.integers(0, 2**63)
shapes = st.lists(st.integers(0, 2**40), max_size=3).map(tuple)
dtypes = st.sampled_from(["F32", "BF16", "I64", "BOOL"])
places = st.builds(Place, bundle=counts, offset=counts, length=counts, block=counts)
specs = st.builds(
    TableSpec,
    name=st.text(),
    rows=counts,
    columns=st.lists(st.builds(ColumnSpec, name=st.text(), dtype=dtypes, row_shape=shapes), max_size=3).map(tuple),
)
rows_chunks = st.builds(
    RowsChunk, place=places, rows=counts, first=counts, last=counts, ids=st.sampled_from([None, "U32", "U64"])
)
tables = st.builds(
    TablePart,
    spec=specs,
    start=counts,
    stop=counts,
    whole=st.booleans(),
    chunks=st.lists(rows_chunks, max_size=3).map(tuple),
)
pieces = st.lists(st.builds(Piece, tensor=counts, start=counts, length=counts), max_size=3).map(tuple)
manifests = st.builds(
    Manifest,
    checkpoint=st.text(),
    rank=counts,
    world=counts,
    tables=st.lists(tables, max_size=3).map(tuple),
    tensors=st.lists(st.builds(TensorSpec, dtype=dtypes, shape=shapes), max_size=3).map(tuple),
    state=st.lists(st.builds(StateChunk, place=places, pieces=pieces), max_size=3).map(tuple),
    bundles=st.lists(
        st.builds(BundleRef, name=st.text(), size_bytes=counts, head_bytes=counts, digest=st.text()), max_size=3
    ).map(tuple),
    full_bytes=counts,
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(manifests)
def test_every_manifest_comes_back(manifest: Manifest) -> None:
    assert Manifest.decode(manifest.encode(), name="x") == manifest


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
            chunks=(RowsChunk(place=Place(bundle=0, offset=0, length=24, block=0), rows=3, first=0, last=2, ids=None),),
        ),
    ),
    tensors=(TensorSpec(dtype="U8", shape=(2,)),),
    state=(
        StateChunk(place=Place(bundle=0, offset=0, length=8, block=0), pieces=(Piece(tensor=0, start=0, length=2),)),
    ),
    bundles=(BundleRef(name="b", size_bytes=1, head_bytes=1, digest="d"),),
    full_bytes=26,
)


def test_sizes_are_sums_over_bundles_and_chunks() -> None:
    twice = replace(EXAMPLE, tables=EXAMPLE.tables * 2, bundles=EXAMPLE.bundles * 2)
    assert (EXAMPLE.size_bytes, EXAMPLE.rows_written) == (1, 3)
    assert (twice.size_bytes, twice.rows_written) == (2, 6)


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


def break_bundles(body: dict[str, Any]) -> None:
    body["bundles"] = [["name", 1]]


def break_pieces(body: dict[str, Any]) -> None:
    del body["state"][0]["pieces"]


@pytest.mark.parametrize("breakage", [dict.clear, break_place, break_columns, break_bundles, break_pieces])
def test_a_sealed_manifest_with_malformed_fields_is_damage(breakage: Callable[[dict[str, Any]], None]) -> None:
    body = unseal("manifest", 1, EXAMPLE.encode(), name="x")
    breakage(body)
    with pytest.raises(DamagedData, match="malformed field"):
        Manifest.decode(seal("manifest", 1, body), name="x")
