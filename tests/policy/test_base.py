from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.policy as policy_package
from holdfast.errors import ConfigurationError
from holdfast.policy import (
    Consecutive,
    EveryMinutes,
    EverySteps,
    Full,
    Grid,
    Intermittent,
    KeepAll,
    KeepBest,
    KeepEvery,
    KeepLast,
    KeepTagged,
    Never,
    OneShot,
    Overlap,
    Pairs,
    Policy,
    Retention,
    SavePolicy,
    Strategy,
    TimeToLive,
    registered,
)
from holdfast.policy.retention import KeptByAll, KeptByAny
from holdfast.policy.when import AllDue, AnyDue

counts = st.integers(1, 2**70)
durations = st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**6)


def joined(simple: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        simple,
        lambda inner: st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a, b: a & b, inner, inner),
        max_leaves=5,
    )


every_policy = st.one_of(
    joined(st.one_of(st.builds(EverySteps, counts), st.builds(EveryMinutes, durations), st.just(Never()))),
    joined(
        st.one_of(
            st.just(KeepAll()),
            st.just(KeepTagged()),
            st.builds(KeepLast, counts),
            st.builds(KeepEvery, counts),
            st.builds(KeepBest, st.text(min_size=1), st.sampled_from(["max", "min"]), counts),
            st.builds(TimeToLive, durations),
        )
    ),
    st.sampled_from([Full(), OneShot(), Consecutive(), Intermittent(), Grid(), Grid(rule=Pairs(0.5), reset=False)]),
)


@given(every_policy)
def test_a_policy_survives_json(policy: Policy) -> None:
    assert Policy.from_dict(json.loads(json.dumps(policy.to_dict()))) == policy


@given(every_policy)
def test_a_repr_is_the_expression_that_makes_the_policy(policy: Policy) -> None:
    assert eval(repr(policy), vars(policy_package)) == policy


def test_the_repr_of_a_combination_reads_as_it_was_written() -> None:
    assert repr(EverySteps(1000) | EveryMinutes(30)) == "EverySteps(n=1000) | EveryMinutes(minutes=30)"
    assert repr((KeepAll() | KeepLast(3)) & TimeToLive()) == "(KeepAll() | KeepLast(n=3)) & TimeToLive(days=14)"


def test_stored_names_do_not_change() -> None:
    """These dicts lie in users' runs: a changed name would leave them unreadable."""
    assert (EverySteps(5) | EveryMinutes(2.5)).to_dict() == {
        "policy": "any_due",
        "parts": [{"policy": "every_steps", "n": 5}, {"policy": "every_minutes", "minutes": 2.5}],
    }
    assert (KeepBest("auc") & TimeToLive()).to_dict() == {
        "policy": "kept_by_all",
        "parts": [
            {"policy": "keep_best", "metric": "auc", "mode": "max", "n": 1},
            {"policy": "time_to_live", "days": 14},
        ],
    }
    names = [each.to_dict()["policy"] for each in (Never(), Full(), OneShot(), Consecutive(), Intermittent())]
    assert names == ["never", "full", "one_shot", "consecutive", "intermittent"]
    names = [each.to_dict()["policy"] for each in (KeepAll(), KeepLast(1), KeepEvery(1), KeepTagged())]
    assert names == ["keep_all", "keep_last", "keep_every", "keep_tagged"]
    assert (Never() & Never()).to_dict()["policy"] == "all_due"
    assert (KeepAll() | KeepAll()).to_dict()["policy"] == "kept_by_any"
    assert [each.value for each in Overlap] == ["wait", "skip", "cancel"]


def test_a_stored_policy_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"KeepLast.* is not a Strategy"):
        Strategy.from_dict(KeepLast(3).to_dict())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"policy": "keep_lots", "n": 3}, "unknown policy 'keep_lots'"),
        ({"policy": ["keep_last"], "n": 3}, "unknown policy"),
        ({"n": 3}, "with the key 'policy'"),
        ("keep_last", "with the key 'policy'"),
        ({"policy": "keep_last"}, "lacks n"),
        ({"policy": "keep_last", "n": 3, "m": 4}, "unknown parameters: m"),
        ({"policy": "keep_last", "n": 0}, "KeepLast: n must be"),
        ({"policy": "keep_last", "n": {"policy": "keep_all"}}, "KeepLast: n must be"),
        ({"policy": "kept_by_any", "parts": []}, "KeptByAny: parts must be"),
        ({"policy": "kept_by_any", "parts": 7}, "KeptByAny: parts must be"),
        ({"policy": "kept_by_any", "parts": [{"policy": "never"}, {"policy": "keep_all"}]}, "KeptByAny: parts must be"),
    ],
)
def test_damaged_descriptions_are_refused_and_say_what_is_wrong(data: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Retention.from_dict(data)


def test_parameters_that_were_added_later_take_their_defaults() -> None:
    assert Retention.from_dict({"policy": "keep_best", "metric": "auc"}) == KeepBest("auc")


@pytest.mark.parametrize("composite", [AnyDue, AllDue, KeptByAny, KeptByAll])
def test_a_combination_of_fewer_than_two_is_refused(composite: Any) -> None:
    part = Never() if issubclass(composite, SavePolicy) else KeepAll()
    for parts in ((), (part,), [part, part], part):
        with pytest.raises(ConfigurationError, match="parts must be a tuple of at least two"):
            composite(parts)


def test_policies_of_different_kinds_do_not_join() -> None:
    with pytest.raises(TypeError):
        EverySteps(3) | KeepLast(2)  # type: ignore[operator]


def test_an_own_policy_needs_a_registered_name_to_be_stored() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Alternating(Strategy):
        def _on_baseline(self, context: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="Alternating has no registered name"):
        Alternating().to_dict()


def test_a_registered_name_cannot_be_taken_twice() -> None:
    with pytest.raises(ConfigurationError, match="'keep_last' is taken by KeepLast"):
        registered("keep_last")(KeepAll)


def test_policies_are_immutable_values() -> None:
    policy = EverySteps(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.n = 4  # type: ignore[misc]
    assert len({EverySteps(3), EverySteps(3), EverySteps(4), KeepLast(3) | KeepAll(), KeepLast(3) | KeepAll()}) == 3
