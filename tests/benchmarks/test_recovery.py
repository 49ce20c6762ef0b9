"""The recovery claim: its trace, its floor and its check of rows; and all of it together at a scale of nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import holdfast as hf
from benchmarks.claims import recovery
from benchmarks.claims._flat_tables import FlatTable, FlatTables
from benchmarks.claims._floor import FlatFile
from benchmarks.claims._recovery_child import Amount, Bench, FloorSource, Recovery, Request, RunSource, Source, serve
from benchmarks.claims._recovery_criteo import STRATEGIES, CriteoPlan
from benchmarks.claims._recovery_criteo import measure as measure_criteo
from benchmarks.claims._recovery_models import MODELS, ModelPlan
from benchmarks.claims._recovery_models import measure as measure_model
from benchmarks.claims._recovery_replay import Repeats
from benchmarks.claims._recovery_sweeps import Sweep, SweepPlan
from benchmarks.claims._recovery_sweeps import measure as measure_sweep
from benchmarks.claims._recovery_writer import Writer
from benchmarks.claims._trace import Trace, zipf_trace
from holdfast.errors import DamagedData

INTERVALS = 6


@pytest.fixture(scope="module")
def trace() -> Trace:
    return zipf_trace(rows=10_000, dim=16, intervals=INTERVALS, seed=1)


def table_at(trace: Trace, interval: int) -> torch.Tensor:
    table = torch.empty(trace.rows, trace.dim)
    trace.fill(table, interval)
    return table


def test_an_interval_changes_one_percent_of_the_rows_each_once(trace: Trace) -> None:
    assert trace.changed.shape == (INTERVALS, 100)
    for ids in trace.changed:
        assert len(set(ids.tolist())) == 100
        assert ids.min() >= 0 and ids.max() < trace.rows


def test_popular_rows_come_back_and_are_scattered_over_the_table() -> None:
    trace = zipf_trace(rows=20_000, dim=2, intervals=40, seed=3)
    times = np.bincount(trace.changed.ravel(), minlength=trace.rows)
    head = np.flatnonzero(times > 30)
    assert len(head) > 10  # the head of the distribution is in nearly every interval
    assert (times == 1).sum() > 1000  # and its tail is new each time
    assert head.max() - head.min() > trace.rows / 2


def test_a_trace_is_the_same_in_another_process(trace: Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "trace.npz")
    loaded = Trace.load(tmp_path / "trace.npz")
    again = zipf_trace(rows=trace.rows, dim=trace.dim, intervals=INTERVALS, seed=1)
    for other in (loaded, again):
        assert (other.rows, other.dim) == (trace.rows, trace.dim)
        assert np.array_equal(other.changed, trace.changed)


def test_updates_lead_from_one_interval_to_the_next(trace: Trace) -> None:
    table = table_at(trace, 0)
    for interval in range(1, INTERVALS + 1):
        ids = trace.update(table, interval)
        assert ids.tolist() == trace.changed[interval - 1].tolist()
        assert trace.count_wrong(table, interval) == 0


def test_a_stale_row_a_future_row_and_a_flipped_bit_are_each_counted(trace: Trace) -> None:
    table = table_at(trace, 3)
    newest, untouched = trace.changed[2][0], np.flatnonzero(trace.writers(INTERVALS) == 0)[0]
    table[newest] = table_at(trace, 2)[newest]
    assert trace.count_wrong(table, 3) == 1
    future = np.setdiff1d(trace.changed[3], trace.changed[2])[0]
    table[future] = table_at(trace, 4)[future]
    assert trace.count_wrong(table, 3) == 2
    table.view(torch.int32)[untouched, trace.dim - 1] ^= 1
    assert trace.count_wrong(table, 3) == 3


def test_every_value_is_a_finite_number(trace: Trace) -> None:
    assert torch.isfinite(table_at(trace, INTERVALS)).all()


def test_wanted_rows_are_those_that_differ(trace: Trace) -> None:
    before, after = table_at(trace, 2), table_at(trace, 5)
    differ = (before != after).any(dim=1).nonzero().squeeze(1)
    assert trace.wanted(5, 2).tolist() == differ.tolist()
    assert len(trace.wanted(4, 4)) == 0


@pytest.mark.parametrize("dim", [16, 128])
@pytest.mark.parametrize("rows", [0, 1, 2049, 40_000])  # none, part of a block, more than one, several pieces
def test_a_flat_file_brings_back_exactly_its_rows(tmp_path: Path, rows: int, dim: int) -> None:
    ids = np.sort(np.random.default_rng(1).permutation(50_000)[:rows])
    values = torch.randn(rows, dim, generator=torch.Generator().manual_seed(1))
    file = FlatFile.write(tmp_path / "flat", ids, values)
    table, expected = torch.zeros(50_000, dim), torch.zeros(50_000, dim)
    expected[torch.from_numpy(ids)] = values
    file.restore(table)
    assert torch.equal(table, expected)


@pytest.mark.parametrize("position", [0, 200_000, -1])  # in the checksums, among the rows, at the end
def test_a_flipped_byte_of_a_flat_file_is_noticed(tmp_path: Path, position: int) -> None:
    file = FlatFile.write(tmp_path / "flat", np.arange(1000), torch.ones(1000, 128))
    data = bytearray(file.path.read_bytes())
    data[position] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(DamagedData):
        file.restore(torch.zeros(1000, 128))


def test_flat_tables_bring_back_exactly_their_rows_and_notice_a_flipped_byte(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    tables, expected, found = {}, {}, {}
    for name, rows in {"none": 10, "few": 10, "many": 50_000}.items():
        ids = np.arange(0, 0 if name == "none" else rows, 2)
        columns = {key: torch.randn(len(ids), 16, generator=generator) for key in ("weight", "sum")}
        tables[name] = FlatTable(ids, columns)
        expected[name] = {key: torch.zeros(rows, 16) for key in columns}
        found[name] = {key: torch.zeros(rows, 16) for key in columns}
        for key, values in columns.items():
            expected[name][key][torch.from_numpy(ids)] = values
    file = FlatTables.write(tmp_path / "flat", tables)
    file.restore(found)
    assert file.rows == 25_005
    assert all(torch.equal(found[name][key], expected[name][key]) for name in expected for key in expected[name])
    data = bytearray(file.path.read_bytes())
    data[-1] ^= 1
    file.path.write_bytes(data)
    with pytest.raises(DamagedData):
        file.restore(found)


@pytest.fixture(scope="module")
def naive_run(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "naive"
    writer = Writer(recovery.STRATEGIES["naive"], folder, trace)
    writer.advance(INTERVALS - 1)
    writer.save_last()
    written = writer.close()
    assert len(written.blocking_s) == len(written.durable_s) == INTERVALS
    assert INTERVALS * 100 * 64 < written.saved_bytes < written.kept_bytes < trace.rows * 64
    return folder


def recover(source: Source, trace: Trace, *requests: Request) -> list[Recovery]:
    """What one process answers to these requests."""
    orders = [order for request in requests for order in (json.dumps(dataclasses.asdict(request)), "recover", "check")]
    answers: list[str] = []
    serve(Bench(source, trace), iter(orders), answers.append)
    assert answers[:3] == ["ready", "prepared", "recovered"]
    return [Recovery(**json.loads(answer)) for answer in answers[3::3]]


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("interval", [1, 4, INTERVALS])
def test_a_run_and_the_floor_recover_the_same_checkpoint(
    trace: Trace, naive_run: Path, tmp_path: Path, interval: int, cold: bool
) -> None:
    request = Request(interval=interval, cold=cold)
    replayed, flat = (
        recover(source, trace, request)[0] for source in (RunSource(naive_run), FloorSource(tmp_path / "floor", trace))
    )
    assert replayed.wrong_rows == flat.wrong_rows == 0
    assert replayed.baseline == flat.baseline == 0
    assert replayed.rows_read == 100 * interval
    assert flat.rows_read == len(trace.wanted(interval))


def test_a_recovery_of_the_wrong_checkpoint_would_be_noticed(trace: Trace, naive_run: Path) -> None:
    class OneTooFew(RunSource):
        def recover(self, request: Request, table: torch.Tensor) -> tuple[float, Amount]:
            return super().recover(Request(interval=request.interval - 1), table)

    found = recover(OneTooFew(naive_run), trace, Request(interval=4), Request(interval=2))
    assert [recovery.wrong_rows for recovery in found] == [100, 100]  # the first does not hide the second


def test_a_table_is_brought_to_one_checkpoint_after_the_other(trace: Trace, naive_run: Path) -> None:
    intervals = [5, 1, 6, 6]
    found = recover(RunSource(naive_run), trace, *(Request(interval=interval) for interval in intervals))
    assert [recovery.interval for recovery in found] == intervals
    assert not any(recovery.wrong_rows for recovery in found)


def test_the_floor_stands_on_the_baseline_it_is_given(trace: Trace, tmp_path: Path) -> None:
    source = FloorSource(tmp_path / "floor", trace)
    found = recover(source, trace, Request(interval=5, baseline=3))[0]
    assert (found.wrong_rows, found.rows_read) == (0, len(trace.wanted(5, 3)))


@pytest.mark.slow
def test_the_whole_claim_adds_up_and_no_row_is_wrong() -> None:
    figures = recovery.run("tiny").figures
    assert figures["wrong_rows"] == 0
    assert figures["naive_rows_read_008"] == 8 * 200
    assert figures["differential_once_rows_read_008"] == figures["naive_rows_wanted_008"]
    assert float(figures["naive_kept_bytes"]) < float(figures["differential_once_kept_bytes"])
    for name in recovery.PLANS["tiny"].shapes[0].strategies:
        assert float(figures[f"{name}_recovery_s"]) > 0
        assert 0 < float(figures[f"{name}_blocking_s"]) < float(figures[f"{name}_durable_s"])
    ratio = float(figures["naive_recovery_s"]) / float(figures["grid_recovery_s"])
    assert figures["naive_over_grid"] == pytest.approx(ratio)
    possible = float(figures["naive_rows_over_wanted_rows"])
    assert figures["naive_over_grid_of_possible"] == pytest.approx(ratio / possible)


@pytest.mark.slow
def test_a_sweep_tells_its_strategies_apart_and_no_row_is_wrong() -> None:
    grids = {"never": hf.Grid(rule=hf.DeadShare(1.0), reset=False), "always": hf.Grid(rule=hf.Pairs(0.0), reset=False)}
    sweep = Sweep(key="test", caption="two extremes", strategies=grids)
    repeats = Repeats(warm=1, cold=0)
    found = measure_sweep(sweep, SweepPlan(rows=20_000, dim=16, intervals=8, every=4, repeats=repeats, seed=1))
    assert found.wrong_rows == 0
    read = {name: float(found.figures[f"test_{name}_rows_read_over_wanted"]) for name in grids}
    moved = {name: float(found.figures[f"test_{name}_rearranged_over_saved"]) for name in grids}
    assert read["always"] == 1 < read["never"]
    assert moved["always"] > moved["never"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_in_training_is_recovered_row_by_row_by_every_strategy(name: str) -> None:
    plan = ModelPlan(scale=0.0005, batch_size=64, batches_per_interval=1, intervals=4, every=2, repeats=1)
    found = measure_model(name, plan)
    assert found.wrong_rows == 0
    assert float(found.figures[f"{name}_naive_rows_read_over_wanted"]) > 1


@pytest.mark.slow
def test_a_model_of_many_tables_is_recovered_row_by_row_with_the_same_baselines_under_load() -> None:
    plan = CriteoPlan(
        rows=4000, checkpoints=6, batch_size=64, batches=1, every=2, repeats=1, strategies=tuple(STRATEGIES), busy=(1,)
    )
    found = measure_criteo(plan)
    assert found.wrong_rows == 0
    assert found.figures["criteo_baselines"] == found.figures["criteo_baselines_beside_1"]
    assert float(found.figures["criteo_grid_rows_over_wanted_rows"]) >= 1
    for ratio in ("grid_over_differential", "grid_over_floor", "naive_over_grid"):
        assert float(found.figures[f"criteo_{ratio}"]) > 0
