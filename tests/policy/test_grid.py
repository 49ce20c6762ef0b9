from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.policy import (
    DeadShare,
    Grid,
    Intermittent,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepTagged,
    Pairs,
    Policy,
    Retention,
    Rule,
    Strategy,
    StrategyContext,
    TimeToLive,
    default_strategy,
)
from holdfast.policy.grid import READ_OVER_WRITE
from holdfast.types import DeltaSizes, Kind

shares = st.floats(0, 1) | st.sampled_from([0, 1])
sizes = st.integers(0, 2**50)  # exact as floats
rules = st.builds(DeadShare, shares) | st.builds(Pairs, shares, st.booleans(), st.booleans(), st.booleans())
grids = st.builds(Grid, rules, st.booleans(), st.booleans(), st.integers(1, 2**40))

NO_SHARES = [-0.1, -(2**-1074), 1.0000001, 2, math.nan, math.inf, -math.inf, "0.5", None, True, 10**400]


@pytest.mark.parametrize("share", NO_SHARES)
def test_a_share_outside_of_0_to_1_is_refused_by_name(share: Any) -> None:
    with pytest.raises(ConfigurationError, match="DeadShare: share must be between 0 and 1"):
        DeadShare(share)
    with pytest.raises(ConfigurationError, match="Pairs: threshold must be between 0 and 1"):
        Pairs(share)


@pytest.mark.parametrize("check", ["check_range", "check_membership", "check_actual"])
@pytest.mark.parametrize("value", [0, 1, None, "yes"])
def test_a_check_is_on_or_off(check: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"Pairs: {check} must be True or False"):
        Pairs(**{check: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rule", 0.25, r"rule must be a rule such as DeadShare\(0.25\)"),
        ("rule", KeepAll(), "rule must be a rule"),
        ("rule", DeadShare, "rule must be a rule"),
        ("reset", 1, "reset must be True or False"),
        ("concatenate", None, "concatenate must be True or False"),
        ("max_postponed", 0, "max_postponed must be a whole number of at least 1"),
        ("max_postponed", math.inf, "max_postponed must be a whole number of at least 1"),
        ("max_postponed", True, "max_postponed must be a whole number of at least 1"),
    ],
)
def test_a_grid_refuses_what_it_cannot_use_and_says_what_it_can(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Grid(**{name: value})


@given(grids)
def test_a_grid_survives_json(grid: Grid) -> None:
    assert Strategy.from_dict(json.loads(json.dumps(grid.to_dict()))) == grid


@given(rules)
def test_a_rule_survives_json(rule: Rule) -> None:
    assert Rule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


def test_stored_names_do_not_change() -> None:
    """These dicts lie in users' runs: a changed name would leave them unreadable."""
    assert Grid().to_dict() == {
        "policy": "grid",
        "rule": {"policy": "dead_share", "share": 0.25},
        "reset": True,
        "concatenate": True,
        "max_postponed": 4,
    }
    assert Pairs().to_dict() == {
        "policy": "pairs",
        "threshold": 0.02,
        "check_range": True,
        "check_membership": True,
        "check_actual": True,
    }


@pytest.mark.parametrize("rule", [{"policy": "keep_all"}, {"policy": "dead_share", "share": 2}, 0.25, None])
def test_a_stored_grid_with_a_rule_that_is_none_is_refused(rule: Any) -> None:
    with pytest.raises(ConfigurationError):
        Policy.from_dict({"policy": "grid", "rule": rule})


@given(shares, sizes, sizes)
def test_a_dead_share_is_due_from_that_share_on_and_never_for_nothing(share: float, dead: int, alive: int) -> None:
    due = DeadShare(share).is_due(dead, alive)
    if dead == 0:
        assert not due
    elif abs(dead - Fraction(share) * alive) > Fraction(alive, 2**50):  # else rounding may decide
        assert due == (dead >= Fraction(share) * alive)


@given(shares, sizes, sizes)
def test_a_pair_is_due_above_the_threshold(threshold: float, dead: int, alive: int) -> None:
    if abs(dead - Fraction(threshold) * alive) > Fraction(alive, 2**50) or not alive:
        assert Pairs(threshold).is_due(dead, alive) == (dead > Fraction(threshold) * alive)


@given(sizes.filter(bool))
def test_at_the_edges_anything_dead_is_due_or_only_what_is_dead_altogether(alive: int) -> None:
    assert DeadShare(0).is_due(1, alive) and Pairs(0).is_due(1, alive)
    assert DeadShare(1).is_due(alive, alive) and not DeadShare(1).is_due(alive - 1, alive)
    assert not Pairs(1).is_due(alive, alive)


# ---- the reset ----------------------------------------------------------------------------------------------------

portions = st.floats(0, 3)


def after(*deltas: float, **counted: float | None) -> StrategyContext:
    return StrategyContext(baseline_exists=True, deltas=DeltaSizes.of(*deltas), **counted)


@given(portions, portions)
def test_a_baseline_is_taken_when_it_takes_less_than_an_increment_and_reading_what_is_above(
    increment: float, changed: float
) -> None:
    context = after(0.1, increment_share=increment, changed_share=changed)
    cost = Fraction(increment) + Fraction(READ_OVER_WRITE) * Fraction(changed)
    if abs(cost - 1) > Fraction(1, 2**40):  # else rounding may decide
        assert Grid().decide(context) is (Kind.FULL if cost > 1 else Kind.INCREMENTAL)
    assert Grid(reset=False).decide(context) is Kind.INCREMENTAL


@given(st.lists(st.tuples(portions, portions)))
def test_no_stream_takes_two_baselines_in_a_row(stream: list[tuple[float, float]]) -> None:
    deltas: tuple[float, ...] = ()
    before = Kind.FULL
    for increment, changed in stream:
        kind = Grid().decide(after(*deltas, increment_share=increment, changed_share=changed))
        assert (before, kind) != (Kind.FULL, Kind.FULL)
        deltas = () if kind is Kind.FULL else (*deltas, increment)
        before = kind


@pytest.mark.parametrize("unknown", ["increment_share", "changed_share"])
def test_what_was_not_counted_takes_no_baseline(unknown: str) -> None:
    counted: dict[str, float | None] = {"increment_share": 1.0, "changed_share": 1.0}
    assert Grid().decide(after(0.5, **counted)) is Kind.FULL
    assert Grid().decide(after(0.5, **{**counted, unknown: None})) is Kind.INCREMENTAL


def test_a_tie_takes_no_baseline() -> None:
    assert Grid().decide(after(0.5, increment_share=0.5, changed_share=1.0)) is Kind.INCREMENTAL


@pytest.mark.parametrize("share", [-0.1, math.nan, math.inf])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigurationError, match="changed_share"):
        after(0.5, changed_share=share)


def test_only_a_grid_that_resets_has_changes_counted() -> None:
    assert Grid().counts_changes
    assert not Grid(reset=False).counts_changes and not Intermittent().counts_changes


def test_without_a_baseline_one_is_taken_whatever_was_measured() -> None:
    assert Grid(reset=False).decide(StrategyContext(baseline_exists=False)) is Kind.FULL


# ---- the default --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retention", [KeepAll(), TimeToLive(), TimeToLive(0.5)], ids=repr)
def test_where_history_is_kept_the_default_is_the_grid(retention: Retention) -> None:
    assert default_strategy(retention) == Grid()


@pytest.mark.parametrize(
    "retention", [KeepLast(1), KeepLast(5), KeepBest("auc"), KeepEvery(10), KeepTagged()], ids=repr
)
def test_where_few_checkpoints_are_kept_the_default_keeps_the_least(retention: Retention) -> None:
    assert default_strategy(retention) == Intermittent()
