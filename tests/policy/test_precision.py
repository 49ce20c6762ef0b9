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
from holdfast.policy.study import STUDY
from holdfast.types import EXACTLY


def auto(expected: float, **options: object) -> hf.Auto:
    return hf.Auto(failure_probability=0.01, nodes=10, expected_hours=expected * 10, **options)  # type: ignore[arg-type]


def paper(expected: float, **options: object) -> hf.PaperTable:
    return hf.PaperTable(failure_probability=0.01, nodes=10, expected_hours=expected * 10, **options)  # type: ignore[arg-type]


THREE_OF_DIFFERENCE = Stored(bits=3, difference=True)


@pytest.mark.parametrize(
    ("expected", "stored"),
    [
        (0.1, THREE_OF_DIFFERENCE),
        (20, THREE_OF_DIFFERENCE),
        (20.1, Stored(bits=8)),
        (100, Stored(bits=8)),
        (101, EXACTLY),
    ],
)
def test_the_default_is_the_cheapest_setting_that_the_study_shows_to_cost_a_ten_thousandth(
    expected: float, stored: Stored
) -> None:
    assert auto(expected).decide("emb", 0) == stored


def test_the_target_decides() -> None:
    assert auto(1, auc_drop_percent=0.0151).decide("emb", 0) == Stored(bits=2)
    assert auto(1, auc_drop_percent=0.0150).decide("emb", 0) == Stored(bits=2, difference=True)
    assert auto(1, auc_drop_percent=0.0150, difference=False).decide("emb", 0) == Stored(bits=3)
    assert auto(4, auc_drop_percent=0.0253, difference=False).decide("emb", 0) == Stored(bits=4)
    assert auto(4, auc_drop_percent=0.0252, difference=False).decide("emb", 0) == Stored(bits=8)
    assert auto(1, auc_drop_percent=0.003).decide("emb", 0) == Stored(bits=8)
    assert auto(3, method="published", auc_drop_percent=0.016).decide("emb", 0) == Stored(bits=3, method="published")


def test_more_restores_than_are_shown_to_be_borne_bring_what_bears_them() -> None:
    policy = auto(1)
    assert policy.tolerated_restores == 20
    assert {policy.decide("emb", restores) for restores in range(21)} == {THREE_OF_DIFFERENCE}
    assert {policy.decide("emb", restores) for restores in range(21, 101)} == {Stored(bits=8)}
    assert policy.decide("emb", 101) == EXACTLY


@given(st.floats(1e-9, 200), st.floats(1e-4, 0.1), st.sampled_from([None, True, False]), st.integers(0, 150))
def test_every_choice_is_backed_by_a_measurement_of_as_many_restores(
    expected: float, target: float, difference: bool | None, restores: int
) -> None:
    policy = auto(expected, auc_drop_percent=target, difference=difference)
    stored = policy.decide("emb", restores)
    backing = [
        each
        for each in STUDY
        if (each.bits, each.difference, each.method) == (stored.bits, stored.difference, "default")
        and each.restores >= max(policy.expected_restores, restores)
        and each.auc_drop_bound_percent <= target
    ]
    assert stored == EXACTLY or backing
    larger = auto(expected, auc_drop_percent=2 * target, difference=difference).decide("emb", restores)
    assert (larger.bits or 32) <= (stored.bits or 32)


@pytest.mark.parametrize(
    ("expected", "bits"), [(0.1, 2), (1, 2), (1.1, 3), (3, 3), (3.1, 4), (20, 4), (20.1, 8), (500, 8)]
)
def test_the_papers_table_is_that_of_the_paper(expected: float, bits: int) -> None:
    assert paper(expected).decide("emb", 0) == Stored(bits=bits)


@pytest.mark.parametrize(("expected", "tolerated"), [(1, 1), (3, 3), (20, 20)])
def test_one_restore_too_many_brings_eight_bits_for_good(expected: float, tolerated: int) -> None:
    policy = paper(expected)
    assert policy.decide("emb", tolerated).bits != 8
    assert all(policy.decide("emb", restores).bits == 8 for restores in range(tolerated + 1, tolerated + 50))


@given(st.floats(0, 200), st.floats(1e-6, 1e-2))
def test_a_larger_budget_never_needs_more_bits(expected: float, budget: float) -> None:
    smaller = paper(max(expected, 1e-9), accuracy_budget=budget)
    larger = paper(max(expected, 1e-9), accuracy_budget=2 * budget)
    assert larger.decide("emb", 0).fidelity <= smaller.decide("emb", 0).fidelity
    assert smaller.tolerated_restores >= smaller.expected_restores or smaller.tolerated_restores == math.inf


POLICIES = [
    hf.Exact(),
    hf.Bits(2),
    hf.Bits(4, difference=True, method="published"),
    hf.Bits(3, method="kmeans"),
    auto(3, difference=True),
    paper(3, method="kmeans"),
    hf.PerTable(hf.Bits(2), {"user": hf.Exact(), "item": auto(1)}),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_precision_can_be_stored(policy: Precision) -> None:
    assert Precision.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_fidelity_orders_precisions() -> None:
    ordered = [hf.Bits(2), hf.Bits(3), hf.Bits(4), hf.Bits(8), hf.Exact()]
    fidelities = [each.decide("emb", 0).fidelity for each in ordered]
    assert fidelities == sorted(fidelities)
    assert hf.Bits(2, difference=True).decide("emb", 0).fidelity == hf.Bits(4).decide("emb", 0).fidelity


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
        (lambda: hf.Auto(failure_probability=0.1, nodes=1, expected_hours=1, auc_drop_percent=0), "auc_drop_percent"),
        (lambda: hf.Auto(failure_probability=0.1, nodes=1, expected_hours=1, method="kmeans"), "not measured"),
        (
            lambda: hf.PaperTable(failure_probability=0.1, nodes=1, expected_hours=1, accuracy_budget=0),
            "accuracy_budget",
        ),
        (lambda: hf.PerTable(hf.Bits, {}), "default"),
        (lambda: hf.PerTable(hf.Bits(2), {"user": 4}), "user"),
        (lambda: hf.PerTable(hf.PerTable(hf.Bits(2), {}), {}), "default"),
    ],
)
def test_bad_values_are_refused_by_name(make: object, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make()  # type: ignore[operator]
