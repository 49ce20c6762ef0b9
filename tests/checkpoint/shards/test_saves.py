"""Saves of several writers that hold row ranges of tables, and loads into any other number of ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.checkpoint.read.key_frame import KeyTable
from holdfast.checkpoint.shards import SavePolicies, Shard, ShardedRun, ShardWriter
from holdfast.checkpoint.write.chunk_encoder import KeyFrames
from holdfast.errors import ConfigurationError, DamagedData, ModelMismatch, SaveFailed, TakenOver
from holdfast.events import SaveGivenUp
from holdfast.format.host_values import arrays_in
from holdfast.policy import Precision, Strategy
from holdfast.storage import LocalStore, MemoryStore
from holdfast.types import Kind
from tests.checkpoint.shards.job import SETTINGS, TRAINING, Cuts, Job, Tables, copied, divided, load, same, some_tables
from tests.independent.reader import IndependentRun
from tests.intents import some_intent

KEEP = hf.KeepAll()
STRATEGIES = [
    hf.Full(),
    hf.Consecutive(),
    hf.OneShot(),
    hf.Intermittent(),
    hf.Grid(rule=hf.DeadShare(0.0)),
]


@st.composite
def divisions(draw: st.DrawFn, sizes: list[int]) -> tuple[int, Cuts]:
    """A number of writers, and where they cut each table; ranges may be empty."""
    parts = draw(st.integers(1, 4))
    cuts = {
        f"emb.{number}": draw(st.lists(st.integers(0, rows), min_size=parts - 1, max_size=parts - 1))
        for number, rows in enumerate(sizes)
    }
    return parts, cuts


PRECISIONS = [hf.Exact(), hf.Bits(4), hf.Bits(4, difference=True)]
SIZES = [67, 0, 5, 230]


@settings(max_examples=14, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(STRATEGIES), st.sampled_from(PRECISIONS), st.integers(0, 2**16))
def test_any_division_is_restored_in_any_other(
    data: st.DataObject, strategy: Strategy, precision: Precision, seed: int
) -> None:
    parts, cuts = data.draw(divisions(SIZES))
    store, tables = MemoryStore(), some_tables(SIZES, seed=seed)
    kept: dict[int, Tables] = {}
    ranges = {name: _range(columns["weight"]) for name, columns in tables.items()}
    policies = SavePolicies(strategy=strategy, precision=precision, retention=KEEP)
    with Job(store, tables, parts, cuts, policies) as job:
        job.start()
        for number in range(data.draw(st.integers(2, 5))):
            job.update(seed + number)
            job.save()
            kept[job.step] = copied(tables)
            ranges = {name: np.maximum(ranges[name], _range(tables[name]["weight"])) for name in ranges}
        for writer in job.writers:
            writer.arrange()
    for step, expected in kept.items():
        other, other_cuts = data.draw(divisions(SIZES))
        found = load(store, tables, other, step=step, cuts=other_cuts)
        if precision == hf.Exact():
            assert same(found, expected)
        else:
            assert same(found, load(store, tables, 1, step=step))
            assert _are_near(found, expected, ranges)
    assert hf.open_run(store).verify() == []


def _range(rows: np.ndarray) -> np.ndarray:
    """Of each row's values. A difference has at most twice the widest; half a step of 4 bits is 1/30 of its range."""
    return np.ptp(rows, axis=1, keepdims=True)


def _are_near(found: Tables, expected: Tables, ranges: dict[str, np.ndarray]) -> bool:
    return all(
        (np.abs(found[name]["weight"] - expected[name]["weight"]) <= widest / 15 + 1e-6).all()
        for name, widest in ranges.items()
    )


@pytest.mark.parametrize("precision", [hf.Exact(), hf.Bits(4, difference=True)], ids=["exact", "differences"])
def test_a_reader_that_knows_the_specification_alone_reads_it(precision: hf.Bits | hf.Exact, tmp_path: Path) -> None:
    store, tables = LocalStore(tmp_path), some_tables([60, 9])
    policies = SavePolicies(strategy=hf.Grid(rule=hf.DeadShare(0.0)), precision=precision, retention=KEEP)
    with Job(store, tables, 3, policies=policies) as job:
        job.start()
        for number in range(4):
            job.save()
            job.update(number)
        for writer in job.writers:
            writer.arrange()
        newest = job.save()
    assert same(IndependentRun(tmp_path).tables(newest.id), load(store, tables, 2))


def test_a_job_goes_on_from_a_checkpoint_of_another_division() -> None:
    store, tables = MemoryStore(), some_tables([90, 14])
    policies = SavePolicies(strategy=hf.Consecutive(), retention=KEEP)
    with Job(store, tables, 4, policies=policies) as job:
        job.start()
        job.save()
        job.update(0)
        job.save()
    with Job(store, tables, 2, policies=policies) as job:
        for shard in job.shards[0] + job.shards[1]:
            shard.columns["weight"][:] = 0
        loaded = job.start(load=True)
        assert [each.info.step for each in loaded] == [1, 1]
        assert [rank.reader for rank in loaded[1].state.ranks] == [{"part": part} for part in range(4)]
        assert np.array_equal(
            arrays_in(loaded[0].state.training)["model"]["mlp.weight"], TRAINING["model"]["mlp.weight"]
        )
        job.update(1)
        assert job.save().kind is Kind.INCREMENTAL
    assert same(load(store, tables, 3), tables)


def test_all_writers_go_back_to_a_checkpoint_and_save_from_there() -> None:
    store, tables = MemoryStore(), some_tables([90, 14])
    policies = SavePolicies(strategy=hf.Grid(), precision=hf.Bits(8, difference=True), retention=KEEP)
    with Job(store, tables, 3, policies=policies) as job:
        job.start()
        infos = []
        for number in range(4):
            infos.append(job.save())
            job.update(number)
        for run, shards, writer in zip(job.runs, job.shards, job.writers, strict=True):
            writer.go_on(run.load(shards, infos[1].id, state=False))
        job.runs[0].go_back(infos[1].id, failed=[infos[3].id])
        before = load(store, tables, 2)
        job.tables, job.step = copied(before), 1
        job.update(9)
        assert job.save().parent == infos[1].id
        listed = hf.open_run(store).checkpoints()
        assert [info.abandoned for info in listed] == [False, False, True, True, False]
        assert [info.doubt is not None for info in listed] == [False, False, False, True, False]
    assert _are_near(load(store, tables, 1), job.tables, {name: _range(tables[name]["weight"]) for name in tables})


def test_the_strategy_counts_what_changed_at_all_writers() -> None:
    tables = some_tables([100])
    with Job(MemoryStore(), tables, 2, policies=SavePolicies(strategy=hf.Grid(), retention=KEEP)) as job:
        job.start()
        job.save()
        job.update(0, share=0.5)
        changed = [writer.changed() for writer in job.writers]
        rows = sum(each["increment"] for each in changed) // (2 * 16 + 4)
        assert rows == np.count_nonzero(
            (tables["emb.0"]["weight"] != some_tables([100])["emb.0"]["weight"]).any(axis=1)
        )


def test_without_the_part_of_one_writer_nothing_is_committed_and_the_next_save_has_its_rows() -> None:
    store, tables = MemoryStore(), some_tables([60])
    with Job(store, tables, 3, policies=SavePolicies(strategy=hf.Consecutive(), retention=KEEP)) as job:
        job.start()
        job.save()
        before = copied(tables)
        job.update(0)
        intent = job.intend()
        assert intent is not None
        for part in (0, 2):
            job.capture(intent, part)
        job.writers[0].cancel()
        for part in (0, 2):
            job.writers[part].settle()
            assert any(isinstance(event, SaveGivenUp) for event in job.writers[part].poll())
        assert same(load(store, tables, 1), before)
        job.save()
        assert same(load(store, tables, 2), tables)


def test_writers_that_do_not_hold_all_rows_commit_nothing() -> None:
    store, tables = MemoryStore(), some_tables([60])
    with Job(store, tables, 2) as job:
        job.shards[1] = divided(tables, {"emb.0": [40]}, 1)  # 30 to 39 are missing
        job.writers[1] = job._writer(1)
        job.start()
        intent = job.intend()
        assert intent is not None
        for part in (0, 1):
            job.capture(intent, part)
        with pytest.raises(SaveFailed, match="do not hold every row of every table once"):
            job.writers[0].drain()
        job.writers[1].settle()
    assert ShardedRun(store, settings=SETTINGS).candidates() == ()


def test_a_job_that_was_taken_over_commits_nothing_more() -> None:
    store, tables = MemoryStore(), some_tables([20])
    with Job(store, tables, 2) as job:
        job.start()
        job.save()
        ShardedRun(store, settings=SETTINGS).take_over()
        intent = job.intend()
        assert intent is not None
        for part in (0, 1):
            job.capture(intent, part)
        for writer in job.writers:
            with pytest.raises(TakenOver):
                writer.settle()


def test_a_damaged_checkpoint_is_passed_over_unless_it_was_asked_for() -> None:
    store, tables = MemoryStore(), some_tables([50])
    with Job(store, tables, 2, policies=SavePolicies(strategy=hf.Consecutive(), retention=KEEP)) as job:
        job.start()
        job.save()
        before = copied(tables)
        job.update(0)
        newest = job.save()
    bundles = [info.name for info in store.list(f"data/{newest.id}/") if info.name.endswith("safetensors")]
    store.put(bundles[-1], bytes(bytearray(store.get(bundles[-1]))[:-8]) + bytes(8))
    with pytest.raises(DamagedData):
        load(store, tables, 1, step=newest.step)
    assert same(load(store, tables, 1), before)


def test_an_agent_that_starts_anew_keeps_its_own_rows_of_the_baseline_in_memory_and_no_others() -> None:
    store, tables = MemoryStore(), some_tables([300])
    policies = SavePolicies(strategy=hf.Consecutive(), precision=hf.Bits(4, difference=True), retention=KEEP)
    with Job(store, tables, 3, policies=policies) as job:
        job.start()
        baseline = job.save()
    intent = replace(some_intent(), base=baseline.id)

    def held(rows: range) -> KeyTable:
        return KeyFrames(store, in_memory=True).below(intent, {"emb.0": rows})["emb.0"]

    assert 0 < 2 * held(range(110, 190)).nbytes < held(range(300)).nbytes
    everywhere = np.array([5, 150, 299])
    assert np.array_equal(held(range(110, 190)).rows(everywhere), held(range(300)).rows(everywhere))


def test_groups_are_marked_at_once() -> None:
    store, tables = MemoryStore(), some_tables([30, 12])
    run = ShardedRun(store, settings=SETTINGS)
    shards = divided(tables, {"emb.0": [], "emb.1": []}, 0, group="dim 4")
    writer = ShardWriter(
        run,
        shards,
        part=0,
        parts=1,
        settings=SETTINGS,
        policies=SavePolicies(strategy=hf.Consecutive(), retention=KEEP),
    )
    writer.start(run.take_over())
    for step in range(2):
        intent = writer.intend(step, force=True)
        assert intent is not None and writer.capture(intent, training=TRAINING)
        writer.drain()
        writer.mark("dim 4", np.array([3, 30, 41]))
        for shard, row in ((shards[0], 3), (shards[1], 0), (shards[1], 11)):
            shard.columns["weight"][row] += 1
            tables[shard.table]["weight"][row] += step == 0
    writer.close()
    assert run.candidates()[0].rows_written == 3
    assert same(load(store, tables, 2), tables)


def test_columns_that_a_checkpoint_lacks_are_told_and_left_alone() -> None:
    store, tables = MemoryStore(), some_tables([8])
    with Job(store, tables, 1) as job:
        job.start()
        job.save()
    columns = {name: np.zeros((3, 4), dtype=np.float32) for name in ("weight", "exp_avg")}
    loaded = ShardedRun(store, settings=SETTINGS).load([Shard(table="emb.0", rows=8, first=5, columns=columns)])
    assert loaded.missing == {"emb.0": ("exp_avg",)} and loaded.unused == {"emb.0": ("sum",)}
    assert np.array_equal(columns["weight"], tables["emb.0"]["weight"][5:]) and not columns["exp_avg"].any()
    with pytest.raises(ModelMismatch, match="rows"):
        ShardedRun(store, settings=SETTINGS).load([Shard(table="emb.0", rows=9, first=5, columns=columns)])


def test_a_shard_outside_of_its_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not all in a table of 8 rows"):
        Shard(table="emb", rows=8, first=6, columns={"weight": np.zeros((3, 4), dtype=np.float32)})
    with pytest.raises(ConfigurationError, match="contiguous"):
        Shard(table="emb", rows=8, first=0, columns={"weight": np.zeros((4, 6), dtype=np.float32)[:, ::2]})
