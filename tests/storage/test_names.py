from __future__ import annotations

import pytest

from holdfast.errors import ConfigurationError
from holdfast.storage.names import check_name, check_prefix, is_name
from holdfast.testing.store_suite import BAD_NAMES


@pytest.mark.parametrize("name", ["a", "a/b", "A-Z_0.9/x", "...", "a/..b", ".hidden", "-", "a" * 900])
def test_a_good_name_is_returned(name: str) -> None:
    assert check_name(name) == name
    assert check_prefix(name) == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_and_named(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ConfigurationError) as caught:
        check_name(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "a/", "a/b", "a/..", "a/.", "."])
def test_the_last_segment_of_a_prefix_may_be_unfinished(prefix: str) -> None:
    assert check_prefix(prefix) == prefix
