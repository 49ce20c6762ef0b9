from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CheckpointNotFound, ConfigurationError
from holdfast.policy import KeepAll, KeepBest, KeepEvery, KeepLast, KeepTagged, Retention, TimeToLive, closure
from holdfast.types import CheckpointInfo, Doubt, Kind

DAY_S = 86_400.0
NOW_S = 100 * DAY_S


def checkpoint(
    step: int,
    *,
    age_days: float = 0.0,
    base: str | None = None,
    tag: str | None = None,
    abandoned: bool = False,
    doubt: Doubt | None = None,
    name: str | None = None,
    **metrics: float,
) -> CheckpointInfo:
    return CheckpointInfo(
        id=name or f"c{step}",
        step=step,
        term=1,
        kind=Kind.FULL if base is None else Kind.DIFFERENTIAL,
        parent=None,
        base=base,
        created_s=NOW_S - age_days * DAY_S,
        size_bytes=1,
        rows_written=1,
        full_bytes=1,
        tag=tag,
        metrics=metrics,
        abandoned=abandoned,
        doubt=doubt,
    )


def steps_kept(policy: Retention, history: list[CheckpointInfo]) -> list[int]:
    kept = policy.kept(history, NOW_S)
    return [each.step for each in history if each.id in kept]


@st.composite
def histories(draw: st.DrawFn, min_size: int = 0) -> list[CheckpointInfo]:
    """Oldest first, ages falling, steps rising except that going back may repeat some; bases are earlier ones."""
    count = draw(st.integers(min_size, 10))
    history: list[CheckpointInfo] = []
    step = 0
    for index in range(count):
        step = max(0, step + draw(st.integers(-3, 8)))
        metric = draw(st.none() | st.sampled_from([0.1, 0.2, 0.3, math.nan, math.inf]))
        history.append(
            checkpoint(
                step,
                name=f"c{index}",
                age_days=(count - index) * draw(st.sampled_from([1, 3])),
                base=draw(st.none() | st.sampled_from([each.id for each in history])) if history else None,
                tag=draw(st.none() | st.just("named")),
                abandoned=draw(st.booleans()),
                **({} if metric is None else {"auc": metric}),
            )
        )
    return history


simple_policies = st.one_of(
    st.just(KeepAll()),
    st.just(KeepTagged()),
    st.builds(KeepLast, st.integers(1, 5)),
    st.builds(KeepEvery, st.integers(1, 10)),
    st.builds(KeepBest, st.just("auc"), st.sampled_from(["max", "min"]), st.integers(1, 3)),
    st.builds(TimeToLive, st.integers(1, 20)),
)
policies = st.recursive(
    simple_policies,
    lambda inner: st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a, b: a & b, inner, inner),
    max_leaves=4,
)


def test_keep_last_keeps_the_newest_ones() -> None:
    assert steps_kept(KeepLast(2), [checkpoint(step) for step in (1, 2, 3, 4)]) == [3, 4]


def test_keep_every_keeps_the_first_at_or_after_each_multiple() -> None:
    history = [checkpoint(step) for step in (0, 400, 1000, 1500, 2100, 2500, 3999, 4000, 4001)]
    assert steps_kept(KeepEvery(1000), history) == [0, 1000, 2100, 3999, 4000, 4001]  # 4001: the newest


def test_keep_best_keeps_the_highest_or_the_lowest() -> None:
    history = [checkpoint(1, auc=0.7), checkpoint(2, auc=0.9), checkpoint(3, auc=0.8), checkpoint(4, auc=0.6)]
    assert steps_kept(KeepBest("auc"), history) == [2, 4]
    assert steps_kept(KeepBest("auc", n=2), history) == [2, 3, 4]
    assert steps_kept(KeepBest("auc", mode="min", n=2), history) == [1, 4]


def test_of_equally_good_checkpoints_the_newer_is_kept() -> None:
    history = [checkpoint(step, auc=0.5) for step in (1, 2, 3)] + [checkpoint(4)]
    assert steps_kept(KeepBest("auc"), history) == [3, 4]
    assert steps_kept(KeepBest("auc", mode="min"), history) == [3, 4]


def test_a_missing_or_nan_metric_is_never_the_best() -> None:
    history = [checkpoint(1, auc=0.1), checkpoint(2, auc=math.nan), checkpoint(3, loss=9.0), checkpoint(4)]
    assert steps_kept(KeepBest("auc", n=3), history) == [1, 4]
    assert steps_kept(KeepBest("auc", mode="min", n=3), history) == [1, 4]


def test_a_metric_that_arrives_later_changes_the_choice() -> None:
    history = [checkpoint(1, auc=0.7), checkpoint(2), checkpoint(3)]
    assert steps_kept(KeepBest("auc"), history) == [1, 3]
    history[1] = replace(history[1], metrics={"auc": 0.8})
    assert steps_kept(KeepBest("auc"), history) == [2, 3]


def test_tagged_saves_are_kept_on_an_abandoned_timeline_too() -> None:
    history = [checkpoint(1, tag="a"), checkpoint(2, tag="b", abandoned=True), checkpoint(3), checkpoint(4)]
    assert steps_kept(KeepTagged(), history) == [1, 2, 4]


def test_time_to_live_limits_what_the_others_keep_but_not_the_newest() -> None:
    history = [checkpoint(1, age_days=30, auc=0.9), checkpoint(2, age_days=20), checkpoint(3, age_days=15)]
    policy = (KeepLast(3) | KeepBest("auc")) & TimeToLive(days=14)
    assert steps_kept(policy, history) == [3]
    history = [*history, checkpoint(4, age_days=14), checkpoint(5)]
    assert steps_kept(policy, history) == [4, 5]


def test_time_to_live_alone_keeps_all_that_is_young_enough() -> None:
    history = [checkpoint(1, age_days=15), checkpoint(2, age_days=13, abandoned=True), checkpoint(3, age_days=1)]
    assert steps_kept(TimeToLive(), history) == [2, 3]


def test_abandoned_checkpoints_take_no_place_of_a_live_one() -> None:
    history = [
        checkpoint(1, auc=0.5),
        checkpoint(2),
        checkpoint(3, abandoned=True, auc=0.9),
        checkpoint(4, abandoned=True),
        checkpoint(2, name="again"),
    ]
    assert KeepLast(2).kept(history, NOW_S) == {"c2", "again"}
    assert KeepBest("auc").kept(history, NOW_S) == {"c1", "again"}
    assert KeepEvery(3).kept(history, NOW_S) == {"again"}
    assert len(KeepAll().kept(history, NOW_S)) == 5


def test_the_newest_live_checkpoint_is_kept_even_when_abandoned_ones_are_newer() -> None:
    history = [checkpoint(1), checkpoint(2, age_days=99), checkpoint(3, abandoned=True)]
    assert "c2" in KeepBest("nothing").kept(history, NOW_S)


def test_an_empty_run_keeps_nothing() -> None:
    assert (KeepAll() | KeepLast(1)).kept([], NOW_S) == frozenset()


@given(policies, histories(min_size=1))
def test_the_newest_good_checkpoint_is_never_dropped(policy: Retention, history: list[CheckpointInfo]) -> None:
    live = [each for each in history if not each.abandoned]
    assert (live or history)[-1].id in policy.kept(history, NOW_S)


@given(policies, policies, histories())
def test_or_keeps_the_union_and_so_drops_nothing_more(
    a: Retention, b: Retention, history: list[CheckpointInfo]
) -> None:
    assert (a | b).kept(history, NOW_S) == a.kept(history, NOW_S) | b.kept(history, NOW_S)


@given(policies, policies, histories())
def test_and_keeps_the_intersection(a: Retention, b: Retention, history: list[CheckpointInfo]) -> None:
    assert (a & b).kept(history, NOW_S) == a.kept(history, NOW_S) & b.kept(history, NOW_S)


@given(policies, policies, policies)
def test_grouping_does_not_matter(a: Retention, b: Retention, c: Retention) -> None:
    assert (a | b) | c == a | (b | c)
    assert (a & b) & c == a & (b & c)


@given(policies, histories())
def test_pruning_twice_drops_nothing_more(policy: Retention, history: list[CheckpointInfo]) -> None:
    kept = policy.kept(history, NOW_S)
    assert policy.kept([each for each in history if each.id in kept], NOW_S) == kept


@given(policies, histories(), st.floats(0, 50))
def test_keep_all_keeps_all_whatever_it_is_joined_with(
    policy: Retention, history: list[CheckpointInfo], days: float
) -> None:
    everything = {each.id for each in history}
    assert (policy | KeepAll()).kept(history, NOW_S + days * DAY_S) == everything
    assert (policy & KeepAll()).kept(history, NOW_S) == policy.kept(history, NOW_S)


@given(policies, histories())
def test_the_closure_is_closed_and_holds_nothing_that_is_not_needed(
    policy: Retention, history: list[CheckpointInfo]
) -> None:
    kept = policy.kept(history, NOW_S)
    needed = closure(history, kept)
    by_id = {each.id: each for each in history}
    stood_on = {by_id[each].base for each in needed} - {None}
    assert kept <= needed <= by_id.keys()
    assert stood_on <= needed
    assert needed - kept <= stood_on


def test_a_kept_increment_needs_the_whole_chain_below_it() -> None:
    chain = [checkpoint(1), checkpoint(2, base="c1"), checkpoint(3, base="c2"), checkpoint(4), checkpoint(5, base="c4")]
    assert closure(chain, ["c3"]) == {"c1", "c2", "c3"}


def test_a_missing_base_is_an_error_that_names_both() -> None:
    with pytest.raises(CheckpointNotFound, match="c3 depends on c2"):
        closure([checkpoint(3, base="c2")], ["c3"])


def test_keeping_a_checkpoint_that_is_not_there_is_an_error() -> None:
    with pytest.raises(CheckpointNotFound, match="c9"):
        closure([checkpoint(1)], ["c9"])


@pytest.mark.parametrize(
    ("make", "parameter"),
    [
        (lambda: KeepLast(0), "KeepLast: n "),
        (lambda: KeepLast(True), "KeepLast: n "),
        (lambda: KeepLast(math.nan), "KeepLast: n "),
        (lambda: KeepEvery(-5), "KeepEvery: n_steps "),
        (lambda: KeepEvery("5"), "KeepEvery: n_steps "),
        (lambda: KeepBest(""), "KeepBest: metric "),
        (lambda: KeepBest(3), "KeepBest: metric "),
        (lambda: KeepBest("auc", mode="maximum"), "KeepBest: mode "),
        (lambda: KeepBest("auc", mode=["max"]), "KeepBest: mode "),
        (lambda: KeepBest("auc", n=0), "KeepBest: n "),
        (lambda: TimeToLive(0), "TimeToLive: days "),
        (lambda: TimeToLive(days=math.nan), "TimeToLive: days "),
        (lambda: TimeToLive(days="14"), "TimeToLive: days "),
    ],
)
def test_bad_parameters_are_refused_by_name(make: object, parameter: str) -> None:
    with pytest.raises(ConfigurationError, match=parameter):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "policy", [KeepLast(1), KeepBest("auc"), KeepTagged(), TimeToLive(1), KeepLast(1) & KeepTagged()]
)
def test_a_suspect_stays_whatever_the_policy_until_it_is_judged(policy: Retention) -> None:
    suspect = checkpoint(2, age_days=9, abandoned=True, doubt=Doubt.SUSPECT)
    history = [checkpoint(1, age_days=10), suspect, checkpoint(3, age_days=8), checkpoint(4, auc=0.5, tag="last")]
    assert steps_kept(policy, history) == [2, 4]
    for doubt in (Doubt.CONDEMNED, None):
        history[1] = replace(suspect, doubt=doubt)
        assert steps_kept(policy, history) == [4]
