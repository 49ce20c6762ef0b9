"""Sets of stripes behave as sets of numbers do, and keep runs instead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.parity.stripe_set import StripeSet

sets = st.sets(st.integers(0, 40), max_size=40)


def of(numbers: set[int]) -> StripeSet:
    return StripeSet.of(np.array(sorted(numbers), np.int64))


def plain(stripes: StripeSet) -> set[int]:
    """Its numbers; runs neither touch nor are empty."""
    (bounds,) = stripes.to_arrays()
    assert bounds.dtype == np.int64 and (np.diff(bounds) > 0).all()
    numbers = stripes.numbers().tolist()
    assert len(stripes) == len(numbers) and numbers == sorted(set(numbers))
    return set(numbers)


@given(sets, sets)
def test_sets_of_runs_are_sets_of_numbers(a: set[int], b: set[int]) -> None:
    assert plain(of(a)) == a
    assert plain(of(a) & of(b)) == a & b
    assert plain(of(a) | of(b)) == a | b
    assert plain(of(a) - of(b)) == a - b
    assert (of(a) == of(b)) == (a == b) and bool(of(a)) == bool(a)
    assert a != b or hash(of(a)) == hash(of(b))


@given(st.lists(sets, max_size=5))
def test_the_union_of_many_holds_all_of_them(parts: list[set[int]]) -> None:
    assert plain(StripeSet.union(of(each) for each in parts)) == set().union(*parts)


@given(sets, st.integers(0, 45), st.integers(0, 45), st.integers(0, 50))
def test_parts_of_a_set(a: set[int], start: int, end: int, count: int) -> None:
    assert plain(of(a).within(start, end)) == {each for each in a if start <= each < end}
    assert plain(of(a).first(count)) == set(sorted(a)[:count])
    assert of(a).contains(np.arange(45)).tolist() == [each in a for each in range(45)]
    assert plain(StripeSet.run(start, end)) == set(range(start, end))


@given(sets, sets)
def test_numbers_stand_where_they_stand_among_all(a: set[int], b: set[int]) -> None:
    order, some = sorted(a | b), sorted(b)
    places = [order.index(each) for each in some]
    assert of(a | b).places(np.array(some, np.int64)).tolist() == places
    assert of(a | b).runs_of(of(b)).rows().tolist() == places


@given(sets)
def test_a_set_comes_back_from_a_message(a: set[int]) -> None:
    assert StripeSet.from_arrays(of(a).to_arrays()) == of(a)


@pytest.mark.parametrize("bounds", [[1], [1, 1], [4, 2], [1, 2, 2, 3], [-1, 3]])
def test_what_is_no_set_is_refused(bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="run"):
        StripeSet.from_arrays((np.array(bounds),))
    with pytest.raises(ValueError, match="runs, each from a number to another"):
        StripeSet.from_arrays((np.zeros(2, np.int32),))


def test_a_set_shows_its_first_runs() -> None:
    assert repr(of({1, 2, 5})) == "StripeSet(1-2, 5-5)"
    assert repr(of(set(range(0, 40, 2)))).endswith("14-14, ...)")


def test_a_billion_stripes_are_a_few_runs() -> None:
    line = StripeSet.run(0, 10**9) - StripeSet.run(5 * 10**8, 5 * 10**8 + 3)
    assert len(line) == 10**9 - 3 and len(line.to_arrays()[0]) == 4
