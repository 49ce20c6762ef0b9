"""The PLS meter, and the line from PLS to accuracy."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigurationError
from holdfast.planner import AccuracyLine, Job, PlsMeter, expected_pls


def test_a_failure_loses_its_share_of_the_samples_since_the_last_save() -> None:
    meter = PlsMeter(total_samples=1000).failed(100, lost_share=1 / 8)  # since the baseline at 0
    assert meter.pls == pytest.approx(100 / 1000 / 8)
    meter = meter.saved(400).failed(500, lost_share=2 / 8)
    assert meter.pls == pytest.approx(100 / 1000 / 8 + 100 / 1000 / 4)
    assert meter.failures == 2


def test_a_failure_right_after_a_save_loses_nothing() -> None:
    assert PlsMeter(total_samples=10).saved(7).failed(7, lost_share=1.0).pls == 0


events = st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([None, 0.125, 0.5, 1.0])), max_size=20)


@given(events)
def test_a_meter_that_went_through_a_checkpoint_counts_on_as_if_it_had_not(history: list[tuple[int, Any]]) -> None:
    kept = stored = PlsMeter(total_samples=1000, budget=0.1)
    for samples, lost_share in sorted(history, key=lambda event: event[0]):
        kept = kept.saved(samples) if lost_share is None else kept.failed(samples, lost_share=lost_share)
        stored = PlsMeter.from_dict(json.loads(json.dumps(stored.to_dict())))
        stored = stored.saved(samples) if lost_share is None else stored.failed(samples, lost_share=lost_share)
    assert stored == kept


def test_the_meter_meets_the_expected_pls_on_average() -> None:
    job = Job(total_s=1000.0, mtbf_s=500.0, save_s=1.0, load_s=0.0, servers=4)
    rng = np.random.default_rng(3)
    found = []
    for _ in range(2000):
        meter = PlsMeter(total_samples=1000)
        for at in sorted(rng.integers(0, 1000, 2).tolist()):
            meter = meter.saved(at // 100 * 100).failed(at, lost_share=1 / 4)
        found.append(meter.pls)
    assert np.mean(found) == pytest.approx(expected_pls(job, 100.0), rel=0.05)


def test_the_meter_warns_near_its_budget_and_says_when_it_is_used_up() -> None:
    meter = PlsMeter(total_samples=100, budget=0.1)
    assert meter.warning is None and not meter.is_near
    near = meter.failed(17, lost_share=0.5)
    assert near.is_near and not near.is_over and near.warning is not None
    assert "budget of 0.1 is 85% used" in near.warning and "save more often" in near.warning
    over = near.failed(30, lost_share=0.5)
    assert over.is_over and "is used up: 2 failures" in str(over.warning)
    assert PlsMeter(total_samples=100).failed(100, lost_share=1.0).warning is None  # no budget


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: PlsMeter(total_samples=0), "total_samples"),
        (lambda: PlsMeter(total_samples=10, budget=0.0), "PLS budget"),
        (lambda: PlsMeter(total_samples=10, warn_at=1.1), "warn_at"),
        (lambda: PlsMeter(total_samples=10).failed(5, lost_share=1.1), "lost_share must be above 0 and at most 1"),
        (lambda: PlsMeter(total_samples=10).failed(11, lost_share=1.0), "11 samples are not between"),
        (lambda: PlsMeter(total_samples=10).saved(5).saved(4), "use the meter of the checkpoint"),
        (lambda: PlsMeter.from_dict({"total_samples": 10}), "lacks budget, failures"),
        (lambda: PlsMeter.from_dict({**PlsMeter(total_samples=9).to_dict(), "x": 1}), "unknown values: x"),
        (lambda: AccuracyLine.fit([0.1, 0.2], [0.0, 0.1]), "3 trainings"),
        (lambda: AccuracyLine.fit([0.1, 0.1, 0.1], [0.0, 0.1, 0.2]), "different PLS"),
        (lambda: AccuracyLine.fit([0.1, 0.2, math.nan], [0.0, 0.1, 0.2]), "finite"),
        (lambda: AccuracyLine(slope=-1.0).pls_for(0.1), "does not fall with PLS"),
        (lambda: AccuracyLine(slope=1.0, intercept=0.2).pls_for(0.1), "leaves no PLS to spend"),
    ],
)
def test_bad_input_is_refused_with_its_remedy(call: object, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        call()  # type: ignore[operator]


def test_an_accuracy_gives_a_pls_along_the_fitted_line() -> None:
    rng = np.random.default_rng(5)
    pls = rng.uniform(0, 0.6, 80)
    loss = 0.004 * pls + rng.normal(0, 0.0003, 80)
    line = AccuracyLine.fit(pls, loss)
    assert line.slope == pytest.approx(0.004, abs=3 * line.slope_error) and line.slope_error < 0.0005
    assert line.correlation > 0.8
    assert line.loss_at(line.pls_for(0.0004)) == pytest.approx(0.0004)
    assert AccuracyLine(slope=0.004).pls_for(0.0004) == pytest.approx(0.1)
    assert AccuracyLine(slope=0.004).pls_for(1.0) == 1.0  # more than everything cannot be lost
