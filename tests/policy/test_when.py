from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.policy import UNREACHABLE_STEPS, EveryMinutes, EverySteps, Never, SaveContext, SavePolicy


def at(step: int, *, last_save: int = 0, now_s: float = 0.0, last_save_s: float = 0.0) -> SaveContext:
    return SaveContext(step=step, now_s=now_s, last_save_step=last_save, last_save_s=last_save_s)


step_policies = st.one_of(st.builds(EverySteps, st.integers(1, 12)), st.just(Never()))
any_policies = st.recursive(
    step_policies | st.builds(EveryMinutes, st.integers(1, 5)),
    lambda inner: st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a, b: a & b, inner, inner),
    max_leaves=5,
)
timeless_policies = st.recursive(
    step_policies,
    lambda inner: st.builds(lambda a, b: a | b, inner, inner) | st.builds(lambda a, b: a & b, inner, inner),
    max_leaves=5,
)
contexts = st.builds(
    lambda last, ahead, now_s: at(last + ahead, last_save=last, now_s=now_s),
    st.integers(0, 50),
    st.integers(0, 30),
    st.floats(0, 400),
)


def saves_of_a_run(policy: SavePolicy, steps: range, *, extra_save_at: int | None = None) -> list[int]:
    last, saves = steps.start, []
    for step in range(steps.start + 1, steps.stop):
        if policy.due(at(step, last_save=last)) or step == extra_save_at:
            saves.append(step)
            last = step
    return saves


def test_every_steps_saves_at_each_multiple() -> None:
    assert saves_of_a_run(EverySteps(3), range(0, 11)) == [3, 6, 9]


def test_a_save_in_between_does_not_shift_the_later_ones() -> None:
    assert saves_of_a_run(EverySteps(3), range(0, 11), extra_save_at=4) == [3, 4, 6, 9]


def test_a_resumed_run_saves_at_the_same_steps_as_an_uninterrupted_one() -> None:
    assert saves_of_a_run(EverySteps(3), range(5, 11)) == [6, 9]


def test_a_skipped_save_is_due_again_at_the_next_step() -> None:
    assert EverySteps(10).due(at(10)) and EverySteps(10).due(at(11)) and EverySteps(10).due(at(19))


def test_every_minutes_is_due_when_the_last_save_is_that_old() -> None:
    policy = EveryMinutes(0.5)
    assert not policy.due(at(1, now_s=129.9, last_save_s=100.0))
    assert policy.due(at(1, now_s=130.0, last_save_s=100.0))


def test_a_clock_that_went_back_makes_nothing_due() -> None:
    assert not EveryMinutes(1).due(at(1, now_s=50.0, last_save_s=100.0))


def test_never_is_never_due() -> None:
    assert not Never().due(at(10**9, now_s=1e12))
    assert Never().steps_until_due(at(5)) == UNREACHABLE_STEPS


def test_steps_until_due_is_none_only_while_time_decides() -> None:
    either = EverySteps(10) | EveryMinutes(1)
    both = EverySteps(10) & EveryMinutes(1)
    assert either.steps_until_due(at(4)) is None
    assert either.steps_until_due(at(10)) == 0
    assert either.steps_until_due(at(4, now_s=60)) == 0
    assert both.steps_until_due(at(4)) is None
    assert both.steps_until_due(at(4, now_s=60)) == 6
    assert (EveryMinutes(1) & Never()).steps_until_due(at(4)) == UNREACHABLE_STEPS
    assert (EverySteps(10) | Never()).steps_until_due(at(4)) == 6


@given(timeless_policies, contexts)
def test_steps_until_due_counts_exactly_the_steps_to_the_next_save(policy: SavePolicy, context: SaveContext) -> None:
    def due_after(steps: int) -> bool:
        return policy.due(at(context.step + steps, last_save=context.last_save_step))

    counted = next((steps for steps in range(20) if due_after(steps)), UNREACHABLE_STEPS)
    assert policy.steps_until_due(context) == counted


@given(any_policies, contexts)
def test_zero_steps_until_due_means_due(policy: SavePolicy, context: SaveContext) -> None:
    assert (policy.steps_until_due(context) == 0) == policy.due(context)


@given(any_policies, contexts, st.integers(0, 20), st.floats(0, 400))
def test_once_due_a_policy_stays_due_until_the_next_save(
    policy: SavePolicy, context: SaveContext, more_steps: int, more_s: float
) -> None:
    later = at(context.step + more_steps, last_save=context.last_save_step, now_s=context.now_s + more_s)
    assert policy.due(later) or not policy.due(context)


@given(any_policies, any_policies, contexts)
def test_or_is_due_when_either_is_and_and_when_both_are(a: SavePolicy, b: SavePolicy, context: SaveContext) -> None:
    assert (a | b).due(context) == (b | a).due(context) == (a.due(context) or b.due(context))
    assert (a & b).due(context) == (b & a).due(context) == (a.due(context) and b.due(context))


@given(any_policies, any_policies, any_policies)
def test_grouping_does_not_matter(a: SavePolicy, b: SavePolicy, c: SavePolicy) -> None:
    assert (a | b) | c == a | (b | c)
    assert (a & b) & c == a & (b & c)


@pytest.mark.parametrize("n", [0, -1, 2.0, math.nan, True, "3", None])
def test_every_steps_refuses_what_is_no_count_by_name(n: object) -> None:
    with pytest.raises(ConfigurationError, match=r"EverySteps: n must be .* got"):
        EverySteps(n)  # type: ignore[arg-type]


@pytest.mark.parametrize("minutes", [0, -0.5, math.nan, math.inf, True, "3", None, 10**400])
def test_every_minutes_refuses_what_is_no_duration_by_name(minutes: object) -> None:
    with pytest.raises(ConfigurationError, match=r"EveryMinutes: minutes must be .* got"):
        EveryMinutes(minutes)  # type: ignore[arg-type]


def test_policies_join_only_with_their_own_kind() -> None:
    with pytest.raises(TypeError):
        EverySteps(3) | 5  # type: ignore[operator]
    with pytest.raises(TypeError):
        EverySteps(3) & None  # type: ignore[operator]
