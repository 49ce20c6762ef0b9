"""Partial recovery as values: what it delegates, what it refuses, when it saves between checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.errors import ConfigurationError
from holdfast.policy import (
    MFU,
    PLS,
    SCAR,
    SSU,
    Consecutive,
    EveryMinutes,
    EverySteps,
    Full,
    Grid,
    Never,
    Partial,
    Policy,
    SaveContext,
    SavePolicy,
    StrategyContext,
)
from holdfast.types import Kind


@pytest.mark.parametrize(
    "policy",
    [
        SCAR(),
        MFU(r=1),
        SSU(r=0.5, period=3, seed=9),
        PLS(0.1),
        PLS(0.05, total_samples=10, samples_per_step=2),
        Partial(),
        Partial(priority=None),
        Partial(priority=SSU(), consistent=Grid(), budget=PLS(0.1)),
    ],
    ids=repr,
)
def test_they_can_be_stored_and_sent(policy: Policy) -> None:
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


def test_the_kind_of_a_checkpoint_is_the_consistent_strategys_decision() -> None:
    on_baseline, first = StrategyContext(baseline_exists=True), StrategyContext(baseline_exists=False)
    assert Partial().decide(on_baseline) is Kind.FULL
    assert Partial(consistent=Consecutive()).decide(on_baseline) is Kind.INCREMENTAL
    assert Partial(consistent=Consecutive()).decide(first) is Kind.FULL


@pytest.mark.parametrize(
    "arguments",
    [
        {"priority": 0.125},
        {"consistent": Partial()},
        {"consistent": MFU()},
        {"budget": 0.1},
    ],
    ids=repr,
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="Partial: "):
        Partial(**arguments)


@pytest.mark.parametrize("budget", [0, -0.1, 1.5, "0.1"])
def test_a_budget_is_a_portion(budget: Any) -> None:
    with pytest.raises(ConfigurationError, match="budget must be above 0"):
        PLS(budget)


@pytest.mark.parametrize("arguments", [{"total_samples": 0}, {"samples_per_step": -1}, {"warn_at": 0}])
def test_a_meter_needs_samples_to_count(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        PLS(0.1, **arguments)


@pytest.mark.parametrize(
    ("save", "between"),
    [
        (EverySteps(1000), EverySteps(125)),
        (EverySteps(3), EverySteps(1)),
        (EveryMinutes(80), EveryMinutes(10)),
        (Never(), Never()),
        (EverySteps(80) | EveryMinutes(8), EverySteps(10) | EveryMinutes(1)),
        (EverySteps(80) & EveryMinutes(8), EverySteps(10) & EveryMinutes(1)),
    ],
    ids=repr,
)
def test_between_checkpoints_a_share_of_the_interval_passes(save: SavePolicy, between: SavePolicy) -> None:
    assert save.scaled(0.125) == between


def test_a_policy_that_cannot_be_scaled_says_what_to_do() -> None:
    @dataclass(frozen=True)
    class AtNight(SavePolicy):
        def due(self, context: SaveContext) -> bool:
            return False

        def steps_until_due(self, context: SaveContext) -> int | None:
            return None

    with pytest.raises(ConfigurationError, match=r"AtNight cannot be scaled .*scaled"):
        AtNight().scaled(0.5)


def test_the_defaults_are_those_of_the_paper() -> None:
    assert (MFU().r, SCAR().r, SSU().r, SSU().period) == (0.125, 0.125, 0.125, 2)
    assert Partial() == Partial(priority=MFU(0.125), consistent=Full(), budget=None)
