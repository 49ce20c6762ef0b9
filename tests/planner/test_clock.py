"""Failure schedules, and the virtual clock of the emulation."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.planner import (
    Emulation,
    EventKind,
    Exponential,
    Failure,
    FailureSchedule,
    Gamma,
    Job,
    Overheads,
    Recovery,
    VirtualClock,
    full_interval_s,
    full_recovery,
    partial_interval_s,
)

MINUTE_S, HOUR_S = 60.0, 3600.0
TOTAL_S = 56 * HOUR_S
JOB = Job(
    total_s=TOTAL_S,
    mtbf_s=28 * HOUR_S,
    save_s=5.65 * MINUTE_S,
    load_s=3 * MINUTE_S,
    reschedule_s=2 * MINUTE_S,
    servers=8,
)


def emulation(
    recovery: Recovery,
    interval_s: float | None,
    *,
    seed: int = 0,
    at_s: list[float] | None = None,
    steps: int = 5600,
    priority_share: float | None = None,
) -> Emulation:
    if at_s is None:
        schedule = FailureSchedule.uniform(2, total_s=TOTAL_S, servers=8, lost_servers=1, seed=seed)
    else:
        schedule = FailureSchedule.given(at_s, total_s=TOTAL_S, servers=8, lost_servers=1)
    return Emulation(
        steps=steps,
        schedule=schedule,
        recovery=recovery,
        interval_s=interval_s,
        save_s=JOB.save_s,
        load_s=JOB.load_s,
        reschedule_s=JOB.reschedule_s,
        priority_share=priority_share,
    )


def walk(run: Emulation) -> tuple[VirtualClock, int]:
    """The loop of an emulation: how many steps it trained."""
    clock, trained = VirtualClock(run), 0
    while (event := clock.next_event()) is not None:
        trained += clock.steps_until_next()
        assert trained == event.step
        clock.pass_event()
    return clock, trained + clock.steps_until_next()


def test_the_clock_tells_what_comes_next_and_when() -> None:
    clock = VirtualClock(emulation(Recovery.FULL, 20 * HOUR_S, at_s=[25 * HOUR_S]))
    seen = []
    while (event := clock.next_event()) is not None:
        seen.append((clock.steps_until_next(), event.kind, event.step, event.steps_since_save))
        clock.pass_event()
    assert seen == [
        (2000, EventKind.SAVE, 2000, 2000),
        (500, EventKind.FAILURE, 2500, 500),
        (1500, EventKind.SAVE, 4000, 2000),
    ]
    assert clock.steps_until_next() == 1600
    assert clock.overheads == Overheads(
        save_s=2 * JOB.save_s, load_s=JOB.load_s, lost_s=5 * HOUR_S, reschedule_s=JOB.reschedule_s
    )
    assert clock.now_s == pytest.approx(40 * HOUR_S + clock.overheads.total_s)
    with pytest.raises(ConfigurationError, match="the job has ended"):
        clock.pass_event()


def test_partial_recovery_trains_nothing_again() -> None:
    clock, _ = walk(emulation(Recovery.PARTIAL, 20 * HOUR_S, at_s=[25 * HOUR_S, 30 * HOUR_S]))
    assert clock.overheads.lost_s == 0 and clock.overheads.load_s == 2 * JOB.load_s


@given(
    st.sampled_from(list(Recovery)),
    st.one_of(st.none(), st.floats(0.5, 56)),
    st.integers(0, 50),
    st.sampled_from([None, 0.125, 0.3, 1.0]),
    st.integers(1000, 9000),
)
def test_every_step_is_trained_once_and_events_are_in_order(
    recovery: Recovery, hours: float | None, seed: int, r: float | None, steps: int
) -> None:
    run = emulation(recovery, hours and hours * HOUR_S, seed=seed, priority_share=r, steps=steps)
    clock, trained = walk(run)
    assert trained == steps
    events = run.events()
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    assert all(0 <= event.last_save_step <= event.step <= steps for event in events)
    total = sum((event.overheads for event in events), Overheads())
    assert clock.overheads.total_s == pytest.approx(total.total_s)


def test_a_failure_just_before_a_save_comes_first_though_after_the_same_step() -> None:
    run = emulation(Recovery.FULL, 10 * HOUR_S, at_s=[10 * HOUR_S - 1], steps=56)
    assert [(event.kind, event.step) for event in run.events()][:2] == [(EventKind.FAILURE, 10), (EventKind.SAVE, 10)]
    assert run.events()[0].overheads.lost_s == pytest.approx(10 * HOUR_S - 1)
    tie = emulation(Recovery.FULL, 10 * HOUR_S, at_s=[10 * HOUR_S])
    assert [event.kind for event in tie.events()][:2] == [EventKind.SAVE, EventKind.FAILURE]
    assert tie.events()[1].overheads.lost_s == 0


@pytest.mark.parametrize("r", [0.125, 0.3, 0.5])
def test_priority_saves_cost_as_much_together_as_one_save(r: float) -> None:
    plain, _ = walk(emulation(Recovery.PARTIAL, 11.2 * HOUR_S))
    run = emulation(Recovery.PARTIAL, 11.2 * HOUR_S, priority_share=r)
    often, _ = walk(run)
    saves = [event for event in run.events() if event.kind is EventKind.SAVE]
    between = [event for event in run.events() if event.kind is EventKind.PRIORITY_SAVE]
    assert len(saves) == 4 and len(between) == {0.125: 35, 0.3: 15, 0.5: 5}[r]
    unfinished = plain.overheads.save_s + JOB.save_s  # the last interval's own save would be at the end
    assert plain.overheads.save_s < often.overheads.save_s < unfinished
    assert all(event.step - event.last_save_step > 0 for event in between)


def test_without_priority_an_eighth_is_saved_eight_times_as_often() -> None:
    run = emulation(Recovery.PARTIAL, 44.8 * HOUR_S, priority_share=0.125)
    assert [event.at_s / HOUR_S for event in run.events() if event.kind is EventKind.PRIORITY_SAVE][
        :2
    ] == pytest.approx([5.6, 11.2])


def test_at_pls_a_tenth_the_first_save_comes_after_44_8_hours() -> None:
    run = emulation(Recovery.PARTIAL, partial_interval_s(JOB, 0.1), at_s=[])
    (save,) = run.events()
    assert save.at_s == pytest.approx(44.8 * HOUR_S) and save.step == 4480


def test_emulated_overheads_meet_the_bars_on_average() -> None:
    """Figure 7 by the clock, over many pairs of failures."""

    def mean_share(recovery: Recovery, interval_s: float | None) -> float:
        return fmean(walk(emulation(recovery, interval_s, seed=seed))[0].overhead_share for seed in range(400))

    full_s = full_interval_s(JOB)
    full, partial = mean_share(Recovery.FULL, full_s), mean_share(Recovery.PARTIAL, full_s)
    cpr = mean_share(Recovery.PARTIAL, partial_interval_s(JOB, 0.1))
    assert 0.080 <= full <= 0.090 and 0.042 <= partial <= 0.046 and cpr <= 0.0055
    assert 1 - cpr / full >= 0.93
    assert full == pytest.approx(full_recovery(JOB, full_s).share_of(TOTAL_S), rel=0.03)


def test_a_schedule_is_the_same_for_the_same_seed_and_differs_for_others() -> None:
    model = Gamma(shape=0.7, scale_s=20 * HOUR_S)
    first, again, other = (
        FailureSchedule.drawn(model, total_s=TOTAL_S, servers=8, lost_servers=2, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert all(len(set(failure.servers)) == 2 for failure in first.failures)


def test_a_drawn_schedule_fails_as_often_as_its_model() -> None:
    model = Exponential(mean_s=28 * HOUR_S)
    drawn = [FailureSchedule.drawn(model, total_s=TOTAL_S, servers=4, lost_servers=1, seed=seed) for seed in range(500)]
    assert fmean(len(schedule.failures) for schedule in drawn) == pytest.approx(2, abs=0.2)
    struck = [failure.servers[0] for schedule in drawn for failure in schedule.failures]
    assert {struck.count(server) > 200 for server in range(4)} == {True}


def test_every_recovery_meets_the_same_failures() -> None:
    full, partial = (emulation(recovery, 20 * HOUR_S, seed=3) for recovery in Recovery)
    of = [[event.failure for event in run.events() if event.failure] for run in (full, partial)]
    assert of[0] == of[1] and len(of[0]) == 2


BASE = emulation(Recovery.FULL, HOUR_S)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: replace(BASE, interval_s=57 * HOUR_S), "at most the job's 56 h"),
        (lambda: replace(BASE, interval_s=0.0), "above 0"),
        (lambda: replace(BASE, steps=20), "a step stands for 10080 s, more than the time between two saves"),
        (lambda: replace(BASE, priority_share=0.0), "priority_share must be above 0 and at most 1"),
        (lambda: replace(BASE, priority_share=1.5), "priority_share"),
        (lambda: replace(BASE, save_s=-1.0), "save_s"),
        (lambda: replace(BASE, steps=0), "steps"),
        (
            lambda: FailureSchedule.uniform(2, total_s=1.0, servers=2, lost_servers=3, seed=0),
            "lost_servers is 3 of 2 servers",
        ),
        (lambda: FailureSchedule.uniform(-1, total_s=1.0, servers=2, lost_servers=1, seed=0), "count"),
        (lambda: FailureSchedule.given([2.0], total_s=1.0, servers=2, lost_servers=1), "within the job's 1 s"),
        (lambda: FailureSchedule.given([-2.0], total_s=1.0, servers=2, lost_servers=1), "within the job's 1 s"),
        (
            lambda: FailureSchedule(total_s=1.0, servers=2, failures=(Failure(at_s=0.5, servers=(2,)),)),
            "different numbers below 2",
        ),
    ],
)
def test_bad_input_is_refused_with_its_remedy(call: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        call()  # type: ignore[operator]
