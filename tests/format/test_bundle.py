from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import DamagedData
from holdfast.format.bundle import (
    BLOCK_BYTES,
    DIRECTORY,
    PAGE,
    Member,
    blocks_of,
    build_head,
    checksums,
    read_directory,
    verify_blocks,
)
from holdfast.format.dtypes import DTYPE_CODES, itemsize

NUMPY_TYPES = {"BOOL": "?", "U8": "u1", "I16": "<i2", "U32": "<u4", "F16": "<f2", "F32": "<f4", "I64": "<i8"}


@st.composite
def layouts(draw: st.DrawFn, dtypes: list[str]) -> tuple[list[Member], bytes]:
    """Tensors in offset order with gaps between them, and a body that holds them."""
    members: list[Member] = []
    position = 0
    for number in range(draw(st.integers(0, 6))):
        position += draw(st.sampled_from([0, 0, 1, 7, 8, 100]))
        dtype = draw(st.sampled_from(dtypes))
        shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        members.append(Member(name=f"{number}/tábl.e/{dtype}", dtype=dtype, shape=shape, offset=position))
        position += math.prod(shape) * itemsize(dtype)
    position += draw(st.sampled_from([0, 3, 64]))
    body = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, position, dtype=np.uint8).tobytes()
    return members, body


def content(member: Member, body: bytes) -> bytes:
    return body[member.offset : member.offset + math.prod(member.shape) * itemsize(member.dtype)]


@settings(max_examples=50, deadline=None)
@given(layouts(sorted(DTYPE_CODES.values())), st.lists(st.integers(0, 2**32 - 1), max_size=7))
def test_stock_safetensors_reads_any_layout(layout: tuple[list[Member], bytes], directory: list[int]) -> None:
    members, body = layout
    head = build_head(members, len(body), directory)
    found = dict(safetensors.deserialize(head + body))  # type: ignore[no-untyped-call]
    for member in members:
        tensor = found[member.name]
        assert (tensor["dtype"], tuple(tensor["shape"])) == (member.dtype, member.shape)
        assert bytes(tensor["data"]) == content(member, body)
    others = set(found) - {member.name for member in members} - {DIRECTORY}
    assert all(name.startswith("pad.") for name in others)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=layouts(sorted(NUMPY_TYPES)))
def test_stock_safetensors_gives_the_same_arrays(layout: tuple[list[Member], bytes], tmp_path: Path) -> None:
    members, body = layout
    file = tmp_path / "bundle.safetensors"
    file.write_bytes(build_head(members, len(body), [1, 2, 3]) + body)
    arrays = safetensors.numpy.load_file(file)
    with safetensors.safe_open(file, framework="np") as opened:
        assert opened.metadata() == {"format": "holdfast bundle 1", "block_bytes": str(BLOCK_BYTES)}
        for member in members:
            expected = np.frombuffer(content(member, body), NUMPY_TYPES[member.dtype]).reshape(member.shape)
            np.testing.assert_array_equal(opened.get_tensor(member.name), expected, strict=True)
            np.testing.assert_array_equal(arrays[member.name], expected, strict=True)


@settings(max_examples=50, deadline=None)
@given(layouts(["U8", "F32"]), st.lists(st.integers(0, 2**32 - 1), max_size=9))
def test_the_head_fills_whole_pages_and_gives_its_directory_back(
    layout: tuple[list[Member], bytes], directory: list[int]
) -> None:
    members, body = layout
    head = build_head(members, len(body), directory)
    assert len(head) % PAGE == 0
    found = read_directory(memoryview(head), name="x").tolist()
    assert found == directory + [0] * (len(directory) % 2)


def test_tensors_that_overlap_are_never_written() -> None:
    first = Member(name="a", dtype="F32", shape=(4,), offset=0)
    second = Member(name="b", dtype="F32", shape=(4,), offset=8)
    with pytest.raises(ValueError, match="inside the one before"):
        build_head([first, second], 24, [])
    with pytest.raises(ValueError, match="inside the one before"):
        build_head([first], 8, [])


def test_two_tensors_of_one_name_are_never_written() -> None:
    member = Member(name="a", dtype="F32", shape=(2,), offset=0)
    again = Member(name="a", dtype="F32", shape=(2,), offset=8)
    with pytest.raises(ValueError, match="two tensors of a bundle are named 'a'"):
        build_head([member, again], 16, [])


@pytest.mark.parametrize("length", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_every_byte_of_a_chunk_is_in_exactly_one_block(length: int) -> None:
    assert len(checksums(memoryview(bytes(length)))) == blocks_of(length) == math.ceil(length / BLOCK_BYTES)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2 * BLOCK_BYTES + 9), st.integers(0, 7), st.integers(0, 3))
def test_a_flipped_bit_is_found_in_its_block(position: int, bit: int, first: int) -> None:
    chunk = bytearray(2 * BLOCK_BYTES + 10)
    directory = np.array([7] * first + checksums(memoryview(chunk)), np.uint32)
    verify_blocks(memoryview(chunk), first, directory, name="x")
    chunk[position] ^= 1 << bit
    with pytest.raises(DamagedData, match=f"^x: block {first + position // BLOCK_BYTES} "):
        verify_blocks(memoryview(chunk), first, directory, name="x")


def test_some_blocks_of_a_chunk_can_be_verified_alone() -> None:
    chunk = np.random.default_rng(0).bytes(3 * BLOCK_BYTES + 5)
    directory = np.array(checksums(memoryview(chunk)), np.uint32)
    verify_blocks(memoryview(chunk)[BLOCK_BYTES : 3 * BLOCK_BYTES], 1, directory, name="x")
    with pytest.raises(DamagedData, match="block 0"):
        verify_blocks(memoryview(chunk)[BLOCK_BYTES : 3 * BLOCK_BYTES], 0, directory, name="x")


@pytest.mark.parametrize("first", [-1, 1, 9])
def test_blocks_without_a_checksum_are_damage(first: int) -> None:
    data = memoryview(bytes(2 * BLOCK_BYTES))
    with pytest.raises(DamagedData, match="no checksums"):
        verify_blocks(data, first, np.array(checksums(data), np.uint32), name="x")


@pytest.mark.parametrize(
    "head", [b"", b"\x01" + bytes(7), bytes(8) + b"abc", b"\xff" * 8 + bytes(64)], ids=["empty", "short", "odd", "huge"]
)
def test_a_head_without_room_for_a_directory_is_damage(head: bytes) -> None:
    with pytest.raises(DamagedData, match="directory"):
        read_directory(memoryview(head), name="x")
