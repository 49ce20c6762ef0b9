"""Which tables live on servers is a plain value: stored, compared, checked where it is made."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.policy import Constant, Init, Normal, Tables, Uniform, tables

numbers = st.floats(-1e30, 1e30) | st.integers(-100, 100)
every_init = st.one_of(
    st.builds(lambda one, other: Uniform(*sorted((one, other))), numbers, numbers),
    st.builds(Normal, numbers, numbers.map(abs)),
    st.builds(Constant, numbers),
)


@given(st.integers(0, 2**40), every_init | st.dictionaries(st.text(), every_init), st.integers(0, 2**70))
def test_tables_come_back_from_json_as_they_were(min_bytes: int, init: Init | dict[str, Init], seed: int) -> None:
    declared = tables(min_bytes=min_bytes, init=init, seed=seed)
    assert Tables.from_dict(json.loads(json.dumps(declared.to_dict()))) == declared


def test_the_first_pattern_that_matches_a_name_counts() -> None:
    declared = tables(init={"user": Constant(1), "user*": Constant(2), "item.*": Uniform(0, 1)})
    assert declared.init_of("user.weight") == Constant(1)
    assert declared.init_of("user_age.weight") == Constant(2)
    assert declared.init_of("item.0.weight") == Uniform(0, 1)
    assert declared.init_of("shop.weight") == Normal(0, 1)
    assert tables(init=Constant(3)).init_of("shop.weight") == Constant(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Uniform(1, 0), "Uniform: high must be at least low, 1, got 0"),
        (lambda: Uniform(math.nan, 0), "Uniform: low must be a number that float32 can hold, got nan"),
        (lambda: Constant(1e39), "Constant: value must be a number that float32 can hold"),
        (lambda: Normal(0, -1), "Normal: std must be at least 0, got -1"),
        (lambda: tables(min_bytes=-1), "Tables: min_bytes must be a whole number of at least 0, got -1"),
        (lambda: tables(seed=1.5), "Tables: seed must be a whole number of at least 0, got 1.5"),
        (lambda: tables(init="uniform"), "Tables: init must be an init such as Uniform"),
        (lambda: tables(init={"user": 0.5}), "for each name pattern, got ('user', 0.5)"),
    ],
)
def test_what_tables_cannot_begin_with_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        make()
    assert words in str(refusal.value)
