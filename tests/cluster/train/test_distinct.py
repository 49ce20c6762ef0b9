"""Which numbers of a tensor are different is found without a tensor whose size depends on it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.train.distinct import Distinct, padded

_NUMBERS = st.lists(st.integers(-3, 40) | st.integers(-(2**62), 2**62), min_size=1, max_size=60)


@given(_NUMBERS)
def test_the_padded_numbers_are_those_that_torch_finds(given_numbers: list[int]) -> None:
    numbers = torch.tensor(given_numbers)
    unique, inverse = torch.unique(numbers, return_inverse=True)
    found = padded(numbers)
    count = int(found.numbers[-1]) + 1
    assert torch.equal(found.numbers[:count], unique)
    assert torch.equal(found.places, inverse)


@given(st.lists(st.integers(-3, 40), max_size=20))
def test_numbers_and_places_fit_together(given_numbers: list[int]) -> None:
    numbers = torch.tensor(given_numbers, dtype=torch.int64)
    found = Distinct(numbers).found()
    assert torch.equal(found.numbers[found.places], numbers)
    assert found.on_host.tolist() == found.numbers.tolist() == sorted(set(given_numbers))
