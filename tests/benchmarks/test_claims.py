"""The three claims at a scale that proves nothing but that they measure, and that what they count adds up."""

from __future__ import annotations

import pytest

from benchmarks.claims import stall, strategies, tracking
from benchmarks.claims._modified import shares_since, shares_within
from benchmarks.data.synthetic import ClickStream


def test_tracking_counts_three_sets_of_one_bit_per_row() -> None:
    figures = tracking.run("tiny").figures
    assert figures["tracker_sets"] == 3
    bits = 8 * float(figures["tracker_bytes_per_set_over_model_bytes"]) * 4 * tracking.DIM
    assert 1 <= bits < 1.2  # a bit per row, and the words that small tables do not fill
    assert figures["tracking_pairs"] == tracking.PLANS["tiny"].pairs
    assert 0 < float(figures["tracking_hooks_us"]) < float(figures["tracking_step_us"])


@pytest.fixture(scope="module")
def strategy_figures() -> dict[str, float]:
    return {name: float(value) for name, value in strategies.run("tiny").figures.items()}


@pytest.mark.parametrize("strategy", strategies.STRATEGIES)
def test_every_strategy_begins_with_a_baseline_of_the_whole_model(
    strategy_figures: dict[str, float], strategy: str
) -> None:
    assert strategy_figures[f"{strategy}_written_00"] == pytest.approx(1, abs=0.01)
    assert strategy_figures[f"{strategy}_kept_00"] == strategy_figures[f"{strategy}_written_00"]


def test_deltas_hold_the_share_of_the_model_that_the_stream_modifies(strategy_figures: dict[str, float]) -> None:
    modified = strategy_figures["modified_in_1_intervals_mean"]
    assert strategy_figures["consecutive_mean_written"] == pytest.approx(modified, abs=0.04)  # dense part, ids, heads
    plan = strategies.PLANS["tiny"]
    grown = shares_since(
        ClickStream(strategies.SEED, plan.scale), plan.interval_samples, [plan.interval_samples * (plan.intervals + 1)]
    )
    assert strategy_figures[f"one_shot_written_{plan.intervals:02d}"] == pytest.approx(grown[0], abs=0.04)


def test_consecutive_deltas_are_all_kept_and_differential_ones_replace_each_other(
    strategy_figures: dict[str, float],
) -> None:
    intervals = strategies.PLANS["tiny"].intervals
    assert strategy_figures["consecutive_most_checkpoints_kept"] == intervals + 1
    assert strategy_figures["one_shot_most_checkpoints_kept"] == 2
    written = [strategy_figures[f"consecutive_written_{number:02d}"] for number in range(intervals + 1)]
    assert strategy_figures["consecutive_peak_kept"] == pytest.approx(sum(written), rel=1e-3)


def test_intermittent_takes_a_baseline_once_it_pays(strategy_figures: dict[str, float]) -> None:
    interval = int(strategy_figures["intermittent_baseline_interval"])
    assert interval > 1
    deltas = [strategy_figures[f"one_shot_written_{number:02d}"] for number in range(1, interval)]
    assert 1 + sum(deltas) <= interval * deltas[-1]
    assert 1 + sum(deltas[:-1]) > (interval - 1) * deltas[-2]


def test_the_share_modified_grows_with_the_samples_and_windows_are_alike() -> None:
    stream = ClickStream(1, 0.0005)
    growth = shares_since(stream, 0, [1000, 2000, 4000])
    assert growth == sorted(growth)
    windows = shares_within(stream, 1000, 4000)
    assert len(windows) == 4 and windows[0] == growth[0]
    assert max(windows) < 1.1 * min(windows)


@pytest.mark.slow
def test_stall_measures_every_saver_and_a_delta_of_a_tenth() -> None:
    figures = stall.run("tiny").figures
    for saver in ("holdfast_full", "holdfast_delta", "dcp_best", "dcp_thread", "torch_save"):
        assert 0 < float(figures[f"{saver}_wait_s"]) <= float(figures[f"{saver}_durable_after_s"])
    ratio = float(figures["holdfast_full_wait_s"]) / float(figures["dcp_best_wait_s"])
    assert figures["full_stall_over_dcp_best"] == pytest.approx(ratio)


def test_a_delta_of_the_stall_claim_holds_a_tenth_of_the_rows() -> None:
    stream = ClickStream(stall.SEED, 0.01)
    batches = [stream.batch(index, 64) for index in range(4)]
    rows = stall.delta_rows(stream.cardinalities, batches)
    assert sum(map(len, rows.values())) == round(0.1 * sum(stream.cardinalities))
    for field, ids in enumerate(rows.values()):
        trained = {int(value) for batch in batches for value in batch.ids[:, field]}
        assert trained <= set(ids.tolist())
