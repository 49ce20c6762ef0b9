"""Copies with their SHA-256 and CRC-32, several at a time, are those of NumPy, hashlib and zlib, whatever the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernels.digests import Bytes, Copied, fast_copies, plain_copies

_LEAST = 1 << 14  # where the compiled ones begin
_BLOCK = 4096  # of a checksum


def at(address: int, length: int, value: int) -> Bytes:
    """Bytes that begin so far behind a cache line."""
    memory = np.full(length + 128, value, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + address
    return memory[start : start + length]


def both(sources: list[Bytes], *, behind: int = 0, block_bytes: int = _BLOCK) -> tuple[list[Copied], list[Bytes]]:
    """What the fast ones find and copy, after it was compared with the plain ones."""
    fast, plain = ([at(behind, len(each), 7) for each in sources] for _ in range(2))
    found = fast_copies()(sources, fast, block_bytes)
    assert found == plain_copies(sources, plain, block_bytes)
    assert all(np.array_equal(*each) for each in zip(fast, sources, strict=True))
    return found, fast


def noise(lengths: list[int], seed: int, skipped: int = 0) -> list[Bytes]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, skipped + length, dtype=np.uint8)[skipped:] for length in lengths]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(_LEAST - 2, _LEAST + 200) | st.integers(0, 130), max_size=6),
    skipped=st.integers(0, 65),
    seed=st.integers(0, 99),
)
def test_any_bytes_at_any_address_are_copied_and_have_the_digests_of_hashlib(
    lengths: list[int], skipped: int, seed: int
) -> None:
    both(noise(lengths, seed, skipped))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(_LEAST, _LEAST + 9000) | st.sampled_from([_LEAST, 20480]), min_size=9, max_size=20),
    skipped=st.integers(0, 65),
    behind=st.sampled_from([0, 0, 8, 63]),
    block_bytes=st.sampled_from([64, 128, 4096, 8192, 131072]),
    seed=st.integers(0, 99),
)
def test_checksums_on_the_way_are_those_of_zlib_whatever_the_lengths_and_places(
    lengths: list[int], skipped: int, behind: int, block_bytes: int, seed: int
) -> None:
    both(noise(lengths, seed, skipped), behind=behind, block_bytes=block_bytes)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 16, 17, 40])
def test_messages_of_different_lengths_take_turns(count: int) -> None:
    both(noise([_LEAST * (1 + number * number % 7) + number for number in range(count)], count))


def test_sections_of_a_frame() -> None:
    both(noise([2 << 20] * 13 + [(2 << 20) - 4, 1835016, 1835008], 1), block_bytes=131072)


@pytest.mark.parametrize("count", [1, 12])
def test_bytes_that_are_in_their_place_already_stay_as_they_are(count: int) -> None:
    data = [np.arange(_LEAST + 9, dtype=np.uint8), np.arange(3, dtype=np.uint8)] * count
    before = [each.copy() for each in data]
    assert fast_copies()(data, data, _BLOCK) == plain_copies(before, [np.empty_like(each) for each in before], _BLOCK)
    assert all(np.array_equal(*each) for each in zip(data, before, strict=True))


@pytest.mark.parametrize("count", [1, 16])
def test_a_flipped_bit_shows(count: int) -> None:
    data = np.zeros(_LEAST + 70, dtype=np.uint8)
    before = both([data] * count)[0][-1]
    for position in (0, 63, 64, _LEAST, _LEAST + 69):
        data[position] ^= 4
        after = both([data] * count)[0][-1]
        assert after.digest != before.digest
        assert after.checksums != before.checksums
        data[position] ^= 4


def test_targets_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError):
        fast_copies()([np.zeros(_LEAST, dtype=np.uint8)], [np.zeros(_LEAST - 64, dtype=np.uint8)], _BLOCK)
