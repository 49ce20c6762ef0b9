"""Copies with their SHA-256, several at a time, are those of NumPy and hashlib, whatever the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.kernels.digests import Bytes, fast_copies, plain_copies

_LEAST = 1 << 14  # where the compiled ones begin


def both(sources: list[Bytes]) -> tuple[list[bytes], list[Bytes]]:
    """The fast digests and copies, after they were compared with the plain ones."""
    fast, plain = ([np.full_like(each, 7) for each in sources] for _ in range(2))
    found = fast_copies()(sources, fast)
    assert found == plain_copies(sources, plain)
    assert all(np.array_equal(*each) for each in zip(fast, sources, strict=True))
    return found, fast


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(_LEAST - 2, _LEAST + 200) | st.integers(0, 130), max_size=6),
    skipped=st.integers(0, 65),
    seed=st.integers(0, 99),
)
def test_any_bytes_at_any_address_are_copied_and_have_the_digests_of_hashlib(
    lengths: list[int], skipped: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    both([random.integers(0, 256, skipped + length, dtype=np.uint8)[skipped:] for length in lengths])


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 16, 17, 40])
def test_messages_of_different_lengths_take_turns(count: int) -> None:
    random = np.random.default_rng(count)
    both(
        [
            random.integers(0, 256, _LEAST * (1 + number * number % 7) + number, dtype=np.uint8)
            for number in range(count)
        ]
    )


def test_bytes_that_are_in_their_place_already_stay_as_they_are() -> None:
    data = [np.arange(_LEAST + 9, dtype=np.uint8), np.arange(3, dtype=np.uint8)]
    before = [each.copy() for each in data]
    assert fast_copies()(data, data) == plain_copies(before, [np.empty_like(each) for each in before])
    assert all(np.array_equal(*each) for each in zip(data, before, strict=True))


def test_a_flipped_bit_shows() -> None:
    data = np.zeros(_LEAST + 70, dtype=np.uint8)
    before, _ = both([data])
    for position in (0, 63, 64, _LEAST, _LEAST + 69):
        data[position] ^= 4
        assert both([data])[0] != before
        data[position] ^= 4


def test_targets_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError):
        fast_copies()([np.zeros(_LEAST, dtype=np.uint8)], [np.zeros(_LEAST - 64, dtype=np.uint8)])
