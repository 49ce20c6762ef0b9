"""How precisely rows are stored follows from the restores to be expected, and from those that happened."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import ConfigurationError
from holdfast.policy import Precision, Stored


def auto(expected: float, **options: object) -> hf.Auto:
    return hf.Auto(failure_probability=0.01, nodes=10, expected_hours=expected * 10, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expected", "bits"), [(0.1, 2), (1, 2), (1.1, 3), (3, 3), (3.1, 4), (20, 4), (20.1, 8), (500, 8)]
)
def test_the_bits_are_those_of_the_paper(expected: float, bits: int) -> None:
    assert auto(expected).decide("emb", 0) == Stored(bits=bits)


@pytest.mark.parametrize(("expected", "tolerated"), [(1, 1), (3, 3), (20, 20)])
def test_one_restore_too_many_brings_eight_bits_for_good(expected: float, tolerated: int) -> None:
    policy = auto(expected)
    assert policy.decide("emb", tolerated).bits != 8
    assert all(policy.decide("emb", restores).bits == 8 for restores in range(tolerated + 1, tolerated + 50))


def test_differences_of_two_bits_serve_twenty_restores_and_of_three_bits_sixty() -> None:
    assert auto(1, difference=True).decide("emb", 0) == Stored(bits=2, difference=True)
    assert auto(20, difference=True).decide("emb", 20) == Stored(bits=2, difference=True)
    assert auto(20, difference=True).decide("emb", 21) == Stored(bits=8)
    assert auto(21, difference=True).decide("emb", 60) == Stored(bits=3, difference=True)
    assert auto(21, difference=True).decide("emb", 61) == Stored(bits=8)
    assert auto(61, difference=True).decide("emb", 0) == Stored(bits=8)
    assert auto(1, difference=True, accuracy_budget=1e-5).decide("emb", 2) == Stored(bits=2, difference=True)


@given(st.floats(0, 200), st.floats(1e-6, 1e-2))
def test_a_larger_budget_never_needs_more_bits(expected: float, budget: float) -> None:
    smaller = auto(max(expected, 1e-9), accuracy_budget=budget)
    larger = auto(max(expected, 1e-9), accuracy_budget=2 * budget)
    assert larger.decide("emb", 0).rank <= smaller.decide("emb", 0).rank
    assert smaller.tolerated_restores >= smaller.expected_restores or smaller.tolerated_restores == math.inf


POLICIES = [
    hf.Exact(),
    hf.Bits(2),
    hf.Bits(4, difference=True, method="published"),
    hf.Bits(3, method="kmeans"),
    auto(3, difference=True),
    hf.PerTable(hf.Bits(2), {"user": hf.Exact(), "item": auto(1)}),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_precision_can_be_stored(policy: Precision) -> None:
    assert Precision.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_ranks_order_precisions() -> None:
    ranks = [hf.Bits(2), hf.Bits(3), hf.Bits(4), hf.Bits(8), hf.Exact()]
    assert [each.decide("emb", 0).rank for each in ranks] == sorted(each.decide("emb", 0).rank for each in ranks)
    assert hf.Bits(2, difference=True).decide("emb", 0).rank == hf.Bits(4).decide("emb", 0).rank


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: hf.Bits(5), "bits"),
        (lambda: hf.Bits(True), "bits"),
        (lambda: hf.Bits(2, method="best"), "method"),
        (lambda: hf.Bits(8, method="kmeans"), r"method .* 8 bits.*'kmeans'"),
        (lambda: hf.Bits(2, difference=1), "difference"),
        (lambda: hf.Auto(failure_probability=1.5, nodes=1, expected_hours=1), "failure_probability"),
        (lambda: hf.Auto(failure_probability=0.1, nodes=0, expected_hours=1), "nodes"),
        (lambda: hf.Auto(failure_probability=0.1, nodes=1, expected_hours=0), "expected_hours"),
        (lambda: hf.Auto(failure_probability=0.1, nodes=1, expected_hours=1, accuracy_budget=0), "accuracy_budget"),
        (lambda: hf.PerTable(hf.Bits, {}), "default"),
        (lambda: hf.PerTable(hf.Bits(2), {"user": 4}), "user"),
        (lambda: hf.PerTable(hf.PerTable(hf.Bits(2), {}), {}), "default"),
    ],
)
def test_bad_values_are_refused_by_name(make: object, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make()  # type: ignore[operator]
