"""Parity is a plain value: stored, compared, and checked where it is made."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.policy import Parity

every = st.builds(
    Parity,
    data=st.integers(1, 255),
    parity=st.integers(1, 2),
    strict=st.booleans(),
    domain=st.sampled_from(["machine", "process"]),
)


@given(every)
def test_parity_comes_back_from_json_as_it_was(parity: Parity) -> None:
    assert Parity.from_dict(json.loads(json.dumps(parity.to_dict()))) == parity


@pytest.mark.parametrize(
    ("given_arguments", "words"),
    [
        ({"data": 0}, "Parity: data must be a whole number from 1 to 255, got 0"),
        ({"data": 256}, "data must be"),
        ({"data": True}, "data must be"),
        ({"data": 2.0}, "data must be"),
        ({"parity": 0}, "Parity: parity must be a whole number from 1 to 2, got 0"),
        ({"parity": 3}, "parity must be"),
        ({"strict": 1}, "strict must be True or False"),
        ({"domain": "rack"}, 'domain must be "machine" or "process"'),
    ],
)
def test_what_cannot_be_is_refused_by_name(given_arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Parity(**given_arguments)


def test_a_job_of_too_few_servers_is_told_how_many_it_takes() -> None:
    Parity().require_servers(5)
    with pytest.raises(ConfigurationError, match=r"needs 5 servers, and this job has 4: start more, or pass data=3"):
        Parity().require_servers(4)
    with pytest.raises(ConfigurationError, match=r"parity=1 needs 2 servers or more, and this job has 1"):
        Parity().require_servers(1)
    with pytest.raises(ConfigurationError, match=r"parity=2 needs 3 servers or more, and this job has 2"):
        Parity(data=1, parity=2).require_servers(2)
