"""The emulation: the same for the same seed, PLS by the paper's formula, overheads as the planner expects them."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.emulation import NAMES, Contest, Outcome, charged, emulate, undisturbed, ways
from holdfast.emulation.sample import SampleTraining
from holdfast.errors import ConfigurationError
from holdfast.planner import (
    Emulation,
    EventKind,
    Failure,
    FailureSchedule,
    Job,
    Overheads,
    Parity,
    ParityPrice,
    Recovery,
    Repairs,
)
from holdfast.planner.recovery import full_recovery, partial_recovery
from holdfast.policy.priority import MFU, SCAR, SSU, Priority

HOUR_S = 3600.0
STEPS = 120
JOB = Job(
    total_s=56 * HOUR_S,
    mtbf_s=28 * HOUR_S,
    save_s=5.65 * 60,
    load_s=180.0,
    reschedule_s=120.0,
    servers=8,
    lost_servers=1,
)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def emulation(count: int = 4, *, seed: int = 0, interval_h: float = 20.0, **changes: Any) -> Emulation:
    schedule = FailureSchedule.uniform(count, total_s=JOB.total_s, servers=8, lost_servers=2, seed=seed)
    made = Emulation(
        steps=STEPS,
        schedule=schedule,
        recovery=Recovery.PARTIAL,
        interval_s=interval_h * HOUR_S,
        save_s=JOB.save_s,
        load_s=JOB.load_s,
        reschedule_s=JOB.reschedule_s,
    )
    return replace(made, **changes)


def trained(seed: int, how: Emulation, priority: Priority | None = None) -> tuple[Outcome, dict[str, Tensor]]:
    training = SampleTraining(seed, STEPS)
    outcome = emulate(training, how, priority)
    return outcome, training.model.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("priority", [None, SSU()], ids=["vanilla", "ssu"])
def test_an_emulation_repeats_bit_for_bit_and_another_seed_gives_another(priority: Priority | None) -> None:
    how = emulation(priority_share=priority.r if priority else None)
    first, state = trained(1, how, priority)
    again, same_state = trained(1, how, priority)
    other, _ = trained(2, how, priority)
    assert first == again and same(state, same_state)
    assert other.auc != first.auc


def test_going_back_and_training_the_same_steps_again_ends_where_nothing_happened() -> None:
    """Which is why full recovery is charged for and not trained."""
    straight = SampleTraining(3, STEPS)
    undisturbed(straight)
    back = SampleTraining(3, STEPS)
    for number in range(40):
        back.step(number)
    model = copy.deepcopy(back.model.state_dict())
    optimizers = [copy.deepcopy(each.state_dict()) for each in back.optimizers]
    for number in range(40, 90):
        back.step(number)
    back.model.load_state_dict(model)
    for optimizer, state in zip(back.optimizers, optimizers, strict=True):
        optimizer.load_state_dict(state)
    for number in range(40, STEPS):
        back.step(number)
    assert same(back.model.state_dict(), straight.model.state_dict())


def test_full_recovery_costs_time_and_partial_recovery_costs_accuracy() -> None:
    plain = undisturbed(SampleTraining(0, STEPS))
    full, _ = trained(0, emulation(recovery=Recovery.FULL))
    partial, _ = trained(0, emulation())
    assert full.auc == plain and full.pls == 0 and full.overheads.lost_s > 0
    assert partial.auc is not None and partial.auc < plain and partial.pls > 0 and partial.overheads.lost_s == 0


def test_parity_costs_time_and_no_accuracy_where_it_can_repair() -> None:
    """Two servers at a time are more than one parity gives back, and with two nothing is lost."""
    straight = SampleTraining(0, STEPS)
    undisturbed(straight)
    one, two = (
        Repairs(price=ParityPrice(parity=Parity(data=4, parity=parities)), repair_s=300.0) for parities in (1, 2)
    )
    repaired, state = trained(0, emulation(repairs=two))
    assert repaired.pls == 0 and same(state, straight.model.state_dict())
    slowed_s = 4 * 300 * (1 - two.price.rates.throughput_in_recovery)
    expected_s = two.price.rates.overhead_share * JOB.total_s + slowed_s
    assert repaired.overheads.parity_s == pytest.approx(expected_s) and repaired.overheads.load_s == 0
    fallen, beneath = charged(emulation(repairs=one)), charged(emulation())
    assert fallen.pls == beneath.pls > 0 and fallen.overheads.load_s == beneath.overheads.load_s
    assert fallen.overheads.parity_s == pytest.approx(one.price.rates.overhead_share * JOB.total_s)


def test_a_server_that_fails_while_another_is_repaired_is_more_than_one_parity_gives_back() -> None:
    repairs = Repairs(price=ParityPrice(), repair_s=600.0)
    times = [(100.0, 1), (500.0, 2), (1200.0, 3), (1300.0, 3)]
    failures = [Failure(at_s=at_s, servers=(server,)) for at_s, server in times]
    assert repairs.repaired(failures) == (True, False, True, True)


def test_the_way_of_parity_is_what_a_clusters_planner_chooses() -> None:
    (way,) = ways(JOB, 0.1, ["parity"], repair_s=60.0)
    assert way.repairs is not None and way.repairs.price.parity == Parity(data=4, parity=1)
    assert way.interval_s == ways(JOB, 0.1, ["cpr-vanilla"])[0].interval_s
    with pytest.raises(ConfigurationError, match="parity needs 3 servers or more, and this job has 2"):
        ways(replace(JOB, servers=2), 0.1, ["parity"])


def test_without_failures_saving_changes_nothing() -> None:
    straight = SampleTraining(0, STEPS)
    plain = undisturbed(straight)
    outcome, state = trained(0, emulation(0, priority_share=0.125), MFU())
    assert outcome.auc == plain and outcome.pls == 0 and same(state, straight.model.state_dict())


@pytest.mark.parametrize("seed", range(20))
def test_pls_is_that_of_equation_3(seed: int) -> None:
    how = emulation(5, seed=seed, priority_share=0.25)
    expected, last_save = 0.0, 0
    for event in how.events():
        if event.kind is EventKind.SAVE:
            last_save = event.step
        if event.failure is not None:
            expected += (event.step - last_save) / (STEPS * 8) * len(event.failure.servers)
    assert charged(how).pls == pytest.approx(expected) and expected > 0


@pytest.mark.parametrize("recovery", Recovery)
def test_overheads_are_on_average_what_the_planner_expects(recovery: Recovery) -> None:
    interval_s = JOB.total_s / 32
    analytic = (full_recovery if recovery is Recovery.FULL else partial_recovery)(JOB, interval_s)
    found = []
    for seed in range(1500):
        how = emulation(2, seed=seed, interval_h=interval_s / HOUR_S, steps=5600, recovery=recovery)
        found.append(charged(how).overheads)
    means = {field.name: np.mean([getattr(each, field.name) for each in found]) for field in fields(Overheads)}
    assert means["load_s"] == pytest.approx(analytic.load_s)
    assert means["reschedule_s"] == pytest.approx(analytic.reschedule_s)
    assert means["lost_s"] == pytest.approx(analytic.lost_s, rel=0.03)
    assert means["save_s"] == pytest.approx(analytic.save_s * 31 / 32)  # none at the end, when all is done


def test_priority_saves_of_an_interval_cost_one_save() -> None:
    plain, first = charged(emulation(0, interval_h=28)), charged(emulation(0, interval_h=28, priority_share=0.125))
    assert plain.overheads.save_s == JOB.save_s  # one, in the middle of the job
    assert first.overheads.save_s == pytest.approx(JOB.save_s * 15 / 8)  # and seven more eighths until the end


def test_the_ways_are_those_of_the_papers() -> None:
    by_name = {way.name: way for way in ways(JOB, 0.1)}
    assert tuple(by_name) == NAMES
    assert by_name["full"].interval_s == by_name["partial"].interval_s == pytest.approx(2.296 * HOUR_S, rel=1e-3)
    assert all(by_name[name].interval_s == pytest.approx(44.8 * HOUR_S) for name in NAMES[2:])
    assert [by_name[name].priority for name in NAMES] == [None, None, None, SCAR(), MFU(), SSU(), None]
    assert {way.recovery for way in by_name.values() if way.name != "full"} == {Recovery.PARTIAL}


def test_cpr_falls_back_to_full_recovery_where_partial_recovery_costs_more() -> None:
    often = replace(JOB, mtbf_s=JOB.total_s / 40, lost_servers=4)  # figure 10
    assert {way.recovery for way in ways(often, 0.02, ["cpr-vanilla", "cpr-ssu"])} == {Recovery.FULL}


def test_priority_saves_go_on_where_the_interval_is_longer_than_the_job() -> None:
    vanilla, ssu = ways(JOB, 0.2, ["cpr-vanilla", "cpr-ssu"])
    assert vanilla.interval_s is None and ssu.interval_s == JOB.total_s
    schedule = FailureSchedule(total_s=JOB.total_s, servers=8)
    assert [event.kind for event in ssu.emulation(schedule, STEPS).events()] == [EventKind.PRIORITY_SAVE] * 7


def test_a_contest_tells_how_each_way_fared_with_each_seed() -> None:
    schedules = {
        seed: FailureSchedule.uniform(3, total_s=JOB.total_s, servers=8, lost_servers=1, seed=seed) for seed in (4, 5)
    }
    contest = Contest(
        build=lambda seed: SampleTraining(seed, STEPS),
        steps=STEPS,
        ways=ways(JOB, 0.1, ["full", "cpr-vanilla"]),
        schedules=schedules,
    )
    steps: list[None] = []
    job = contest.hold("a job", pls_budget=0.1, on_step=lambda: steps.append(None))
    assert len(steps) == contest.trained_steps == 4 * STEPS
    full, vanilla = job.strategies
    assert full.values("auc_drop") == [0.0, 0.0]
    for run, plain in zip(vanilla.runs, full.runs, strict=True):
        assert run.failures == plain.failures == schedules[run.seed].failures
        assert run.auc is not None and plain.auc is not None and run.auc_drop == plain.auc - run.auc


def test_what_cannot_be_emulated_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(ConfigurationError, match=r"interval_s must be above 0 and at most the job's 56 h"):
        emulation(interval_h=57)
    with pytest.raises(ConfigurationError, match="priority_share must be above 0 and at most 1"):
        emulation(priority_share=1.5)
    with pytest.raises(ConfigurationError, match="r must be above 0 and at most 1"):
        ways(JOB, 0.1, ["cpr-mfu"], r=0.0)
    with pytest.raises(ConfigurationError, match="lost_servers is 9 of 8 servers"):
        FailureSchedule.uniform(2, total_s=JOB.total_s, servers=8, lost_servers=9, seed=0)
    with pytest.raises(ConfigurationError, match="unknown strategy 'cpr'; choose from full, partial"):
        ways(JOB, 0.1, ["cpr"])
    schedule = FailureSchedule(total_s=JOB.total_s, servers=8)
    with pytest.raises(ConfigurationError, match="train more than 10 steps or save less often"):
        Contest(build=lambda seed: SampleTraining(seed, 10), steps=10, ways=ways(JOB, 0.1), schedules={0: schedule})
    with pytest.raises(ConfigurationError, match="the training has 10 steps and the emulation 120"):
        emulate(SampleTraining(0, 10), emulation())
    with pytest.raises(ConfigurationError, match=r"a share of 0\.5 of the rows and the emulation's clock one of None"):
        emulate(SampleTraining(0, STEPS), emulation(), MFU(0.5))
    with pytest.raises(ConfigurationError, match="at least one way"):
        Contest(build=lambda seed: SampleTraining(seed, 10), steps=10, ways=(), schedules={0: schedule})
