from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DamagedData
from holdfast.format.document import canonical_json, digest, parse, seal, seal_lists, unseal

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
BODY = {"name": "é", "rows": [1, 2.5, None], "deep": {"b": 1, "a": "x\ny"}}


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_every_json_value_comes_back(value: object) -> None:
    assert unseal("catalog", 1, seal("catalog", 1, value), name="x") == value


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.integers()))
def test_equal_values_have_equal_bytes_whatever_their_order(value: dict[str, int]) -> None:
    again = dict(reversed(value.items()))
    assert seal("catalog", 1, value) == seal("catalog", 1, again)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.lists(json_values, max_size=3)))
def test_lists_that_are_sealed_item_by_item_make_the_same_bytes(value: dict[str, list[object]]) -> None:
    assert seal_lists("history", 1, {key: iter(items) for key, items in value.items()}) == seal("history", 1, value)


def test_a_document_is_one_line_and_plain_json_in_ascii() -> None:
    line, body = seal("intent", 1, BODY).split(b"\n")  # text is escaped, so there is no other line break
    assert line.split() == [b"holdfast", b"intent", b"1", digest(body).encode()]
    assert json.loads(body) == BODY
    assert body.isascii() and body == canonical_json(BODY)


def test_every_flipped_bit_is_damage() -> None:
    data = seal("catalog", 1, BODY)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedData, match=r"^catalog/7: "):
                unseal("catalog", 1, flipped, name="catalog/7")


def test_every_other_byte_in_the_first_line_is_damage() -> None:
    data = seal("catalog", 1, BODY)
    for position in range(data.index(b"\n") + 1):
        for byte in {*range(256)} - {data[position]}:
            with pytest.raises(DamagedData):
                unseal("catalog", 1, data[:position] + bytes([byte]) + data[position + 1 :], name="x")


def test_every_truncation_is_damage() -> None:
    data = seal("catalog", 1, BODY)
    for length in range(len(data)):
        with pytest.raises(DamagedData):
            unseal("catalog", 1, data[:length], name="x")


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1), st.booleans())
def test_every_addition_is_damage(extra: bytes, before: bool) -> None:
    data = seal("catalog", 1, BODY)
    with pytest.raises(DamagedData):
        unseal("catalog", 1, extra + data if before else data + extra, name="x")


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(DamagedData):
        unseal("catalog", 1, data, name="x")


def test_a_document_of_another_kind_or_version_is_refused_by_what_it_is() -> None:
    with pytest.raises(DamagedData, match=r"is not a catalog document.*lease"):
        unseal("catalog", 1, seal("lease", 1, BODY), name="x")
    with pytest.raises(DamagedData, match="format version 2; this release reads version 1"):
        unseal("catalog", 1, seal("catalog", 2, BODY), name="x")


def sealed(body: bytes) -> bytes:
    return f"holdfast catalog 1 {digest(body)}\n".encode() + body


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000], ids=["empty", "open", "not text", "bottomless"])
def test_a_sealed_body_that_is_no_json_is_damage(body: bytes) -> None:
    with pytest.raises(DamagedData, match="no valid JSON"):
        unseal("catalog", 1, sealed(body), name="x")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_numbers_that_json_lacks_are_never_written(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        seal("catalog", 1, value)


@pytest.mark.parametrize(
    ("body", "build"),
    [
        ({}, lambda body: body["missing"]),
        ([], lambda body: body[0]),
        ("x", int),
        (3, len),
        ([], lambda body: body.items()),
        (10**400, float),
    ],
    ids=["key", "index", "value", "type", "attribute", "size"],
)
def test_a_malformed_field_is_damage_that_names_the_object(body: Any, build: Callable[[Any], object]) -> None:
    with pytest.raises(DamagedData, match=r"^catalog/7: has a missing or malformed field"):
        parse("catalog/7", lambda: build(body))
