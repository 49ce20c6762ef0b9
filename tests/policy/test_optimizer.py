"""Optimizers of servers are plain values: stored, compared, checked where they are made."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.policy import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from holdfast.policy.optimizer import LARGEST_BETA
from holdfast.types import ColumnSpec, UpdateMethod

rates = st.floats(0, 1e6) | st.integers(0, 100)
beta = st.floats(0, LARGEST_BETA)
every_optimizer = st.one_of(
    st.builds(SGD, rates),
    st.builds(SGD, rates, momentum=st.floats(0.01, 0.999), nesterov=st.booleans()),
    st.builds(Adagrad, rates, eps=rates, initial_accumulator_value=rates),
    st.builds(RowwiseAdagrad, rates, eps=rates, initial_accumulator_value=rates),
    st.builds(Adam, rates, betas=st.tuples(beta, beta), eps=rates),
)


@given(every_optimizer)
def test_an_optimizer_comes_back_from_json_as_it_was(optimizer: Optimizer) -> None:
    stored = json.loads(json.dumps(optimizer.to_dict()))
    assert Optimizer.from_dict(stored) == optimizer
    assert Optimizer.from_dict(stored).rule() == optimizer.rule()


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowwiseAdagrad, Adam])
@pytest.mark.parametrize("lr", [-0.1, math.nan, math.inf, "0.1", None, True])
def test_a_learning_rate_is_a_finite_number_of_at_least_zero(kind: Any, lr: object) -> None:
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}: lr must be a finite number of at least 0, got"):
        kind(lr)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGD(0.1, momentum=1.0), "SGD: momentum must be at least 0 and below 1, got 1.0"),
        (lambda: SGD(0.1, momentum=-0.1), "SGD: momentum must be at least 0 and below 1, got -0.1"),
        (lambda: SGD(0.1, nesterov=True), "SGD: momentum must be above 0 with nesterov=True, got 0.0"),
        (lambda: SGD(0.1, momentum=0.5, nesterov=1), "SGD: nesterov must be True or False, got 1"),
        (lambda: Adagrad(0.1, eps=-1), "Adagrad: eps must be a finite number of at least 0, got -1"),
        (lambda: RowwiseAdagrad(0.1, initial_accumulator_value=math.nan), "initial_accumulator_value must be a finite"),
        (lambda: Adam(0.1, betas=(0.9, 1.0)), "Adam: betas must be a tuple of two numbers from 0 to 0.999999, got"),
        (lambda: Adam(0.1, betas=(0.9,)), "Adam: betas must be a tuple of two numbers"),
        (lambda: Adam(0.1, betas=0.9), "Adam: betas must be a tuple of two numbers"),
        (lambda: Adam(0.1, eps=math.inf), "Adam: eps must be a finite number of at least 0, got inf"),
    ],
)
def test_what_an_optimizer_cannot_work_with_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        make()
    assert words in str(refusal.value)


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowwiseAdagrad, Adam])
def test_weight_decay_is_not_offered(kind: Any) -> None:
    with pytest.raises(TypeError, match="weight_decay"):
        kind(0.1, weight_decay=0.01)


def test_slots_are_those_that_torch_keeps_under_the_same_names() -> None:
    def columns(optimizer: Optimizer) -> list[ColumnSpec]:
        return [slot.column(64) for slot in optimizer.rule().slots]

    full = {"dtype": "F32", "row_shape": (64,)}
    assert columns(SGD(0.1)) == []
    assert columns(SGD(0.1, momentum=0.9)) == [ColumnSpec(name="momentum_buffer", **full)]
    assert columns(Adagrad(0.1)) == [ColumnSpec(name="sum", **full)]
    assert columns(RowwiseAdagrad(0.1)) == [ColumnSpec(name="sum", dtype="F32", row_shape=())]
    assert columns(Adam(0.1)) == [
        ColumnSpec(name="exp_avg", **full),
        ColumnSpec(name="exp_avg_sq", **full),
        ColumnSpec(name="step", dtype="F32", row_shape=()),
    ]


def test_only_adam_has_another_rule_for_dense_parameters() -> None:
    for optimizer in (SGD(0.1), SGD(0.1, momentum=0.9), Adagrad(0.1), RowwiseAdagrad(0.1)):
        assert optimizer.rule(dense=True) == optimizer.rule()
    assert Adam(0.1).rule().method is UpdateMethod.SPARSE_ADAM
    assert Adam(0.1).rule(dense=True).method is UpdateMethod.ADAM


def test_the_largest_beta_leaves_no_correction_where_a_rows_count_of_updates_ends() -> None:
    assert LARGEST_BETA ** (2**24) < 2**-24
