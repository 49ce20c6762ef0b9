"""CPR's numbers, from its equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.planner import (
    IndependentNodes,
    Job,
    LinearMtbf,
    MtbfOverNodes,
    Overheads,
    Recovery,
    compare,
    expected_pls,
    full_interval_s,
    full_recovery,
    partial_interval_s,
    partial_recovery,
)

MINUTE_S, HOUR_S = 60.0, 3600.0


def paper_job(*, servers: int = 8, failures: int = 2) -> Job:
    """Figure 7, Kaggle."""
    return Job(
        total_s=56 * HOUR_S,
        mtbf_s=56 * HOUR_S / failures,
        save_s=5.65 * MINUTE_S,
        load_s=3 * MINUTE_S,
        reschedule_s=2 * MINUTE_S,
        servers=servers,
    )


jobs = st.builds(
    lambda total, failures, save, load, servers: Job(
        total_s=total, mtbf_s=total / failures, save_s=save * total, load_s=load * total, servers=servers
    ),
    st.floats(HOUR_S, 1000 * HOUR_S),
    st.floats(0.1, 50),
    st.floats(1e-6, 1e-2),
    st.floats(0, 1e-2),
    st.integers(1, 64),
)


def test_the_best_interval_of_full_recovery_is_the_papers() -> None:
    assert full_interval_s(paper_job()) == pytest.approx(math.sqrt(2 * 5.65 * 28 * 60) * MINUTE_S)
    assert full_interval_s(paper_job()) == pytest.approx(2.296 * HOUR_S, rel=1e-3)


@given(jobs, st.booleans(), st.floats(0.3, 3))
def test_no_other_interval_costs_less(job: Job, corrected: bool, factor: float) -> None:
    best_s = full_interval_s(job, corrected=corrected)
    other_s = min(job.total_s, best_s * factor)
    best, other = (full_recovery(job, each, corrected=corrected).total_s for each in (best_s, other_s))
    assert best <= other * (1 + 1e-9)


@given(jobs)
def test_corrected_saves_are_those_of_the_whole_time(job: Job) -> None:
    interval_s = full_interval_s(job, corrected=True)
    overheads = full_recovery(job, interval_s, corrected=True)
    if math.isfinite(overheads.total_s):
        saves = (job.total_s + overheads.total_s) / interval_s
        assert overheads.save_s == pytest.approx(saves * job.save_s, rel=1e-9)
    assert overheads.total_s >= full_recovery(job, interval_s).total_s


@given(jobs)
def test_correction_vanishes_with_the_overhead(job: Job) -> None:
    plain, corrected = (full_recovery(job, job.total_s, corrected=each).save_s for each in (False, True))
    other = full_recovery(job, job.total_s).total_s / job.total_s
    assert plain <= corrected <= plain * (1 + 2 * other + 2 * job.save_s / job.total_s)


def test_saves_without_end_cost_an_infinite_time() -> None:
    job = paper_job()
    assert partial_recovery(job, 5 * MINUTE_S, corrected=True).total_s == math.inf


@pytest.mark.parametrize("corrected", [False, True])
def test_the_bars_of_figure_7(corrected: bool) -> None:
    job = paper_job()
    found = compare(job, 0.1, corrected=corrected)
    naive = partial_recovery(job, full_interval_s(job))  # partial recovery at the interval of full recovery
    assert 0.080 <= found.full.share_of(job.total_s) <= 0.090
    assert 0.042 <= naive.share_of(job.total_s) <= 0.046
    assert found.partial.share_of(job.total_s) <= 0.0055
    assert found.reduction >= 0.93
    assert found.recovery is Recovery.PARTIAL and found.expected_pls == pytest.approx(0.1)


@pytest.mark.parametrize(("servers", "share", "hours"), [(8, 0.0051, 44.8), (4, 0.0072, 22.4), (2, 0.0114, 11.2)])
def test_cpr_at_pls_a_tenth(servers: int, share: float, hours: float) -> None:
    found = compare(paper_job(servers=servers), 0.1)
    assert found.partial_interval_s == pytest.approx(hours * HOUR_S)
    assert found.overheads.share_of(56 * HOUR_S) == pytest.approx(share, abs=5e-5)


def test_the_four_overheads_are_told_apart() -> None:
    job = paper_job()
    parts = full_recovery(job, full_interval_s(job))
    assert parts.save_s == pytest.approx(24.39 * 5.65 * MINUTE_S, rel=1e-3)
    assert (parts.load_s, parts.reschedule_s) == pytest.approx((2 * 3 * MINUTE_S, 2 * 2 * MINUTE_S))
    assert parts.lost_s == pytest.approx(full_interval_s(job))
    assert parts.total_s == pytest.approx(parts.save_s + parts.load_s + parts.lost_s + parts.reschedule_s)
    assert parts + Overheads(parity_s=1.0) == Overheads(
        save_s=parts.save_s, load_s=parts.load_s, lost_s=parts.lost_s, reschedule_s=parts.reschedule_s, parity_s=1.0
    )


@pytest.mark.parametrize("corrected", [False, True])
def test_which_settings_of_figure_10_fall_back_to_full_recovery(corrected: bool) -> None:
    """PLS 0.02; 2, 20 and 40 failures; an eighth, a quarter and half of the servers lost."""
    fall_back = {
        (failures, servers)
        for failures in (2, 20, 40)
        for servers in (8, 4, 2)
        if compare(paper_job(servers=servers, failures=failures), 0.02, corrected=corrected).recovery is Recovery.FULL
    }
    assert fall_back == {(20, 2), (40, 4), (40, 2)}


def test_partial_recovery_gains_less_with_more_failures_and_with_more_lost() -> None:
    """Figure 10: what is left of full recovery's overhead."""
    left = [
        [1 - compare(paper_job(servers=servers, failures=failures), 0.02).reduction for servers in (8, 4, 2)]
        for failures in (2, 20, 40)
    ]
    assert (np.diff(left, axis=0) >= 0).all() and (np.diff(left, axis=1) >= 0).all()
    assert np.max(left) == 1.0


def test_a_small_benefit_can_be_declined() -> None:
    job = paper_job(servers=4, failures=20)
    assert compare(job, 0.02).recovery is Recovery.PARTIAL
    assert compare(job, 0.02, least_benefit=0.3).recovery is Recovery.FULL
    assert compare(job, 0.02, least_benefit=0.3).expected_pls == 0


def test_the_production_cluster_saved_every_2_to_8_hours() -> None:
    """Section 6.2: 4 of 18 servers lost, 5 failures in 50 hours, PLS of 0.025 to 0.1."""
    job = Job(total_s=50 * HOUR_S, mtbf_s=10 * HOUR_S, save_s=60, load_s=60, servers=18, lost_servers=4)
    assert partial_interval_s(job, 0.025) == pytest.approx(2 * HOUR_S, rel=0.15)
    assert partial_interval_s(job, 0.1) == pytest.approx(8 * HOUR_S, rel=0.15)


@given(jobs, st.floats(0.001, 1))
def test_the_interval_of_a_budget_is_expected_to_use_it_up(job: Job, pls: float) -> None:
    interval_s = partial_interval_s(job, pls)
    if interval_s is None:
        assert expected_pls(job, None) <= pls * (1 + 1e-9)  # never saving loses no more
    else:
        assert expected_pls(job, interval_s) == pytest.approx(pls)


def test_a_budget_that_asks_for_no_save_costs_failures_only() -> None:
    """Figure 9: at PLS 0.2 the overhead is 0.3%."""
    found = compare(paper_job(), 0.2)
    assert found.partial_interval_s is None
    assert found.overheads.share_of(56 * HOUR_S) == pytest.approx(0.003, abs=5e-5)


MTBF_MODELS = [
    LinearMtbf.fit([4, 40], [30 * HOUR_S, 14 * HOUR_S]),
    IndependentNodes.through(4, 30 * HOUR_S, period_s=14 * HOUR_S),
]


@pytest.mark.parametrize("mtbf", MTBF_MODELS, ids=lambda mtbf: type(mtbf).__name__)
def test_overhead_falls_with_nodes_for_cpr_and_rises_for_full_recovery(mtbf: MtbfOverNodes) -> None:
    """Figure 13, over the paper's MTBF of 30 h and less. A line that nears 0 ends the fall for any recovery."""

    def job(nodes: int) -> Job:
        return Job(
            total_s=56 * HOUR_S,
            mtbf_s=mtbf.mtbf_s(nodes),
            save_s=5.65 * MINUTE_S,
            load_s=3 * MINUTE_S,
            reschedule_s=2 * MINUTE_S,
            servers=nodes,
        )

    found = [compare(job(nodes), 0.02) for nodes in (4, 8, 16, 24)]
    assert [each.recovery for each in found] == [Recovery.PARTIAL] * 4
    assert (np.diff([each.overheads.total_s for each in found]) < 0).all()
    assert (np.diff([each.full.total_s for each in found]) > 0).all()
    many = compare(job(40), 0.02)
    assert many.overheads.total_s < 0.5 * found[0].overheads.total_s
    assert many.full.total_s > found[-1].full.total_s


def test_mtbf_models_pass_through_what_was_measured() -> None:
    for mtbf in MTBF_MODELS:
        assert mtbf.mtbf_s(4) == pytest.approx(30 * HOUR_S)
    assert MTBF_MODELS[0].mtbf_s(22) == pytest.approx(22 * HOUR_S)
    single = IndependentNodes(probability=1 / 280)
    assert single.mtbf_s(1) == pytest.approx(280 * HOUR_S)
    assert single.mtbf_s(8) == pytest.approx(280 / 8 * HOUR_S, rel=0.02)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: Job(total_s=1.0, mtbf_s=0, save_s=1, load_s=1), "mtbf_s must be a finite number above 0, got 0"),
        (lambda: Job(total_s=-1.0, mtbf_s=1, save_s=1, load_s=1), "total_s must be"),
        (lambda: Job(total_s=1.0, mtbf_s=1, save_s=1, load_s=-1), "load_s must be"),
        (lambda: Job(total_s=1.0, mtbf_s=1, save_s=1, load_s=1, servers=2, lost_servers=3), "3 of 2 servers"),
        (lambda: full_recovery(paper_job(), 57 * HOUR_S), "every 57 h never happens in a job of 56 h: shorten"),
        (lambda: partial_recovery(paper_job(), 0.0), "interval_s must be"),
        (lambda: partial_interval_s(paper_job(), 0.0), "PLS budget must be above 0"),
        (lambda: compare(paper_job(), 1.5), "at most 1"),
        (lambda: compare(paper_job(), 0.1, least_benefit=1.0), "least_benefit"),
        (lambda: MTBF_MODELS[0].mtbf_s(80), "the line ends at 71 nodes and says nothing about 80"),
        (lambda: MTBF_MODELS[0].mtbf_s(0), "nodes must be a whole number"),
        (lambda: LinearMtbf.fit([4, 4], [1.0, 2.0]), "at least two of each"),
        (lambda: LinearMtbf.fit([4, 8], [1.0, 0.0]), "MTBFs above 0"),
        (lambda: IndependentNodes.through(4, 60.0), "below the MTBF"),
        (lambda: IndependentNodes(probability=1.0), "probability"),
    ],
)
def test_bad_input_is_refused_with_its_remedy(call: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        call()  # type: ignore[operator]
