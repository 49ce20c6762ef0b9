"""Rows saved between checkpoints, and parts of the tables that are lost and come back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchdata.stateful_dataloader import StatefulDataLoader
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.commit.lease import live_leases
from holdfast.checkpoint.read.fetcher import Fetcher, leased
from holdfast.checkpoint.restore.partial import Servers, newest_entries, plan_newest
from holdfast.checkpoint.restore.row_lookup import lookup_rows
from holdfast.cli import app
from holdfast.errors import CheckpointNotFound, ConfigurationError, ModelMismatch, RunError
from holdfast.format.catalog import Entry
from holdfast.format.layout import chunk_columns
from holdfast.policy import Priority, Strategy
from holdfast.storage import MemoryStore, Store, open_store
from holdfast.testing.faults import FaultyStore, Operation
from tests.independent.reader import IndependentRun
from tests.tiny import ROWS, build, same, snapshot, train_step, uninterrupted

POLICIES = [hf.SCAR(r=0.25), hf.MFU(r=0.25), hf.SSU(r=0.25)]
CONSISTENT = [hf.Full(), hf.Consecutive(), hf.Grid(rule=hf.Pairs(0.0))]
TABLES = [f"emb.{number}" for number in range(len(ROWS))]
EVERY = 8

Rows = dict[int, dict[str, Tensor]]  # by id: a row's columns


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class Training:
    """A small model under a Checkpointer whose saves are waited for, so that what is saved when is certain."""

    def __init__(self, store: Store | str, strategy: Strategy, **changes: Any) -> None:
        self.model, self.optimizers = build()
        options = {
            "save": hf.EverySteps(EVERY),
            "retention": hf.KeepAll(),
            "overlap": hf.Overlap.WAIT,
            "settings": hf.Settings(grace_s=0.0, handle_sigterm=False),
            **changes,
        }
        self.guard = hf.Checkpointer(store, model=self.model, optimizer=self.optimizers, strategy=strategy, **options)

    def steps(self, until: int) -> Iterator[int]:
        while self.guard.steps < until:
            self.guard.step(loss=train_step(self.model, self.optimizers, self.guard.steps))
            self.guard.drain()
            yield self.guard.steps

    def train(self, until: int) -> dict[int, dict[str, Tensor]]:
        """The state after each step."""
        return {step: self.state() for step in self.steps(until)}

    def state(self) -> dict[str, Tensor]:
        return snapshot(self.model, self.optimizers)

    def rows(self, table: str) -> dict[str, Tensor]:
        """A table's weights and slots, as they are."""
        weight = self.model.emb[TABLES.index(table)].weight
        slots = {name: each for name, each in self.optimizers[0].state[weight].items() if name.startswith("exp_avg")}
        return {name: each.detach().clone() for name, each in {"weight": weight, **slots}.items()}


@contextmanager
def training(store: Store | str, strategy: Strategy, **changes: Any) -> Iterator[Training]:
    started = Training(store, strategy, **changes)
    with started.guard:
        started.guard.resume()
        yield started


def restored(store: Store | str, step: int | None = None) -> dict[str, Tensor]:
    model, optimizers = build(seed=99)
    hf.open_run(store).restore(step, model=model, optimizer=optimizers)
    return snapshot(model, optimizers)


def stored_rows(store: Store, entry: Entry) -> dict[str, Rows]:
    """What an entry's chunks hold, by table and row."""
    fetcher = Fetcher(store)
    found: dict[str, Rows] = {}
    for manifest in fetcher.parts(entry):
        for part in manifest.tables:
            rows = found.setdefault(part.spec.name, {})
            for chunk in part.chunks:
                data = fetcher.chunk(manifest.bundles[chunk.place.bundle], chunk.place)
                columns = {each.name: each for each in chunk_columns(part.spec.columns, chunk.rows, chunk.ids)}
                ids = np.arange(chunk.first, chunk.first + chunk.rows)
                if chunk.ids is not None:
                    column = columns.pop("ids")
                    kind = np.uint32 if chunk.ids == "U32" else np.uint64
                    stored = np.frombuffer(data[column.offset : column.offset + column.length], kind)
                    ids = chunk.first + stored.astype(np.int64)
                for name, column in columns.items():
                    values = np.frombuffer(data[column.offset : column.offset + column.length], np.float32)
                    for row, value in zip(ids.tolist(), values.reshape(column.shape), strict=True):
                        rows.setdefault(row, {})[name] = torch.from_numpy(value.copy())
    return found


# ---- priority saves beside checkpoints -----------------------------------------------------------------------------


@pytest.mark.parametrize("consistent", CONSISTENT, ids=repr)
@pytest.mark.parametrize("priority", POLICIES, ids=repr)
def test_priority_saves_change_no_checkpoint_and_no_resume(
    store: MemoryStore, priority: Priority, consistent: Strategy
) -> None:
    with training(store, hf.Partial(priority=priority, consistent=consistent)) as first:
        states = {0: first.state(), **first.train(21)}
        assert first.guard.stats.priority_saves == 3 + 3 + 2  # every second step, where no checkpoint is due
        assert first.guard.stats.priority_failed == 0
    run = hf.open_run(store)
    kept = [info.step for info in run.checkpoints()]
    assert kept == [0, 8, 16, 21]
    for step in kept:
        assert same(restored(store, step), states[step])
    assert run.verify() == []
    with training(store, hf.Partial(priority=priority, consistent=consistent)) as second:
        assert second.guard.steps == 21
        assert same(second.train(27)[27], uninterrupted(27))


@pytest.mark.parametrize("priority", POLICIES, ids=repr)
@pytest.mark.parametrize("consistent", CONSISTENT, ids=repr)
def test_a_trainer_killed_after_priority_saves_goes_on_from_the_checkpoint(
    store: MemoryStore, priority: Priority, consistent: Strategy
) -> None:
    killed = Training(store, hf.Partial(priority=priority, consistent=consistent))
    killed.guard.resume()
    killed.train(14)
    assert [info.step for info in hf.open_run(store).priority_saves()] == [10, 12, 14]
    with training(store, hf.Partial(priority=priority, consistent=consistent)) as second:
        assert second.guard.steps == 8
        assert hf.open_run(store).priority_saves() == []  # they come from a training that was left
        assert same(second.train(20)[20], uninterrupted(20))
    assert same(restored(store), uninterrupted(20))
    killed.guard._release()


@pytest.mark.parametrize("priority", POLICIES, ids=repr)
@pytest.mark.parametrize("consistent", CONSISTENT, ids=repr)
def test_the_newest_view_holds_the_newest_saved_row_of_each(
    store: MemoryStore, priority: Priority, consistent: Strategy
) -> None:
    run = hf.open_run(store)
    with training(store, hf.Partial(priority=priority, consistent=consistent)) as started:
        expected = {name: {row: {"weight": v} for row, v in enumerate(started.rows(name)["weight"])} for name in TABLES}
        for step in started.steps(14):
            live = {name: started.rows(name) for name in TABLES}
            if step % EVERY == 0:
                expected = {name: rows_of(live[name]) for name in TABLES}
            elif step % 2 == 0:
                entry = run.head().catalog.priority[-1]
                assert entry.info.step == step
                for name, rows in stored_rows(store, entry).items():
                    assert all(equal(columns, rows_of(live[name])[row]) for row, columns in rows.items())
                    expected[name] = {**expected[name], **rows}
            for name, table_rows in expected.items():
                ids = torch.randperm(len(table_rows))
                assert equal(run.read_newest_rows(name, ids), stacked(table_rows, ids))


def rows_of(columns: dict[str, Tensor]) -> Rows:
    return {row: {name: each[row] for name, each in columns.items()} for row in range(len(columns["weight"]))}


def stacked(rows: Rows, ids: Tensor) -> dict[str, Tensor]:
    return {name: torch.stack([rows[int(row)][name] for row in ids]) for name in rows[0]}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_priority_save_holds_a_share_of_the_large_tables_and_all_of_the_small_ones(store: MemoryStore) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"large": nn.Embedding(2000, 8, sparse=True), "small": nn.Embedding(10, 8, sparse=True)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hf.Checkpointer(
        store, model=model, optimizer=optimizer, save=hf.EverySteps(80), strategy=hf.Partial(priority=hf.MFU(r=0.1))
    ) as guard:
        guard.resume()
        for step in range(8):
            optimizer.zero_grad()
            ids = torch.randint(0, 2000, (256,), generator=torch.Generator().manual_seed(step))
            (model["large"](ids).sum() + model["small"](ids % 3).sum()).backward()
            optimizer.step()
            guard.drain()
            guard.step()
        guard.drain()
        (entry,) = hf.open_run(store).head().catalog.priority
        rows = stored_rows(store, entry)
        assert {name: len(each) for name, each in rows.items()} == {"large": 200, "small": 10}
        assert guard.stats.priority_bytes == entry.info.size_bytes < 0.2 * entry.info.full_bytes


def test_the_next_checkpoint_drops_priority_saves_and_their_objects_go(store: MemoryStore) -> None:
    with training(store, hf.Partial(priority=hf.MFU(r=0.25))) as started:
        started.train(7)
        dropped = [info.id for info in hf.open_run(store).priority_saves()]
        assert len(dropped) == 3
        started.train(8)
        assert hf.open_run(store).priority_saves() == []
        started.train(16)
    assert not [info.name for info in store.list("data/") if info.name.split("/")[1] in dropped]


def test_a_reader_of_priority_saves_keeps_their_objects(store: MemoryStore) -> None:
    run = hf.open_run(store)
    with training(store, hf.Partial(priority=hf.MFU(r=0.25))) as started:
        started.train(7)
        expected = run.read_newest_rows("emb.0", range(300))
        with leased(store, run.head, newest_entries) as head:
            started.train(24)
            fetcher = Fetcher(store)
            plans = plan_newest(fetcher, head, newest_entries(head))
            found = lookup_rows(fetcher, plans["emb.0"], torch.arange(300))
        assert equal(found, expected)


def test_pruning_keeps_priority_saves_and_counts_none_of_them_as_checkpoints(store: MemoryStore) -> None:
    with training(store, hf.Partial(priority=hf.MFU(r=0.25)), retention=hf.KeepAll()) as started:
        started.train(15)
        run = hf.open_run(store)
        view = run.read_newest_rows("emb.0", range(300))
        dropped, _ = run.prune(hf.KeepLast(1), grace_s=0.0)
        assert [info.step for info in dropped] == [0] and [info.step for info in run.checkpoints()] == [8]
        assert len(run.priority_saves()) == 3
        assert equal(run.read_newest_rows("emb.0", range(300)), view)


def test_verification_reads_priority_saves(store: MemoryStore) -> None:
    with training(store, hf.Partial(priority=hf.MFU(r=0.25))) as started:
        started.train(7)
        run = hf.open_run(store)
        victim = run.head().catalog.priority[1].info.id
        damage(store, victim)
        (problem,) = run.verify()
        assert problem.checkpoint == victim


def damage(store: MemoryStore, checkpoint: str) -> None:
    (name,) = [info.name for info in store.list(f"data/{checkpoint}/") if info.name.endswith(".safetensors")]
    data = bytearray(store.get(name))
    data[-40] ^= 1
    store.delete([name])
    store.put(name, bytes(data))


def test_an_independent_reader_reads_a_run_with_priority_saves(tmp_path: Path) -> None:
    with training(str(tmp_path / "run"), hf.Partial(priority=hf.MFU(r=0.25), consistent=hf.Consecutive())) as started:
        states = started.train(15)
        while live_leases(open_store(tmp_path / "run"), "writer"):  # the agent gives it back last: then nothing changes
            time.sleep(0.01)
        reader = IndependentRun(tmp_path / "run")
        reader.verify()
        newest = reader.checkpoints()[-1]
        assert newest["step"] == 8
        read = reader.tables(newest["id"])["emb.0"]["weight"]
        assert torch.equal(torch.from_numpy(read.copy()), states[8]["emb.0.weight"])
        for name, columns in reader.newest().items():
            ours = hf.open_run(tmp_path / "run").read_newest_rows(name, range(len(columns["weight"])))
            assert equal(ours, {column: torch.from_numpy(values.copy()) for column, values in columns.items()})


def test_exports_listings_and_summaries_are_of_checkpoints(tmp_path: Path) -> None:
    with training(str(tmp_path / "run"), hf.Partial(priority=hf.MFU(r=0.25), budget=hf.PLS(0.5, 800, 10))) as started:
        states = started.train(15)
        run = hf.open_run(tmp_path / "run")
        assert run.export(tmp_path / "model.pt").step == 8
        assert torch.equal(torch.load(tmp_path / "model.pt")["emb.0.weight"], states[8]["emb.0.weight"])
        summary = run.summary()
        assert (summary.checkpoint.step, summary.checkpoints, summary.priority_saves) == (8, 2, 3)
        shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")], env={"COLUMNS": "200"}).output
        assert "3 since the newest checkpoint" in shown and "0 of a budget of 0.5" in shown
        listed = CliRunner().invoke(app, ["ls", str(tmp_path / "run")], env={"COLUMNS": "200"}).output
        assert "full" in listed and "priority" not in listed
        assert CliRunner().invoke(app, ["verify", str(tmp_path / "run")]).exit_code == 0


# ---- the baseline ------------------------------------------------------------------------------------------------


def test_a_baseline_exists_before_training_begins(store: MemoryStore) -> None:
    with training(store, hf.Partial(), save=hf.EverySteps(10**6)) as started:
        before = started.state()
        started.guard.drain()
        assert [info.step for info in hf.open_run(store).checkpoints()] == [0]
        started.train(3)
        assert same(restored(store, 0), before)


def test_batches_take_the_baseline_too_and_a_resume_from_it_reads_every_sample(store: MemoryStore) -> None:
    def train(stop: int | None) -> list[int]:
        torch.manual_seed(3)
        model = nn.Embedding(20, 2, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = StatefulDataLoader(list(range(20)), batch_size=2, shuffle=True)
        guard = hf.Checkpointer(
            store, model=model, optimizer=optimizer, loader=loader, save=hf.Never(), strategy=hf.Partial()
        )
        guard.resume() if stop is None else None
        seen: list[int] = []
        for batch in guard.batches():
            model(batch).sum().backward()
            optimizer.step()
            guard.step()
            seen += batch.tolist()
            if stop is not None and guard.steps == stop:
                guard.drain()
                guard._release()  # as good as killed: nothing more is saved
                return seen
        guard.close()
        return seen

    first = train(3)
    assert [info.step for info in hf.open_run(store).checkpoints()] == [0]
    again = train(None)
    assert again[:6] == first and sorted(again) == list(range(20))


def test_where_a_step_comes_first_the_baseline_is_of_that_step(store: MemoryStore) -> None:
    started = Training(store, hf.Partial(), save=hf.EverySteps(10**6))
    with started.guard:
        states = started.train(3)
        assert [info.step for info in hf.open_run(store).checkpoints()] == [1]
        assert same(restored(store, 1), states[1])


def test_other_strategies_take_no_baseline_before_the_first_save_is_due(store: MemoryStore) -> None:
    with training(store, hf.Full()) as started:
        started.train(7)
        assert hf.open_run(store).checkpoints() == []


# ---- losing parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consistent", CONSISTENT, ids=repr)
@pytest.mark.parametrize("priority", [*POLICIES, None], ids=repr)
def test_exactly_the_lost_rows_come_back_as_they_were_saved_last(
    store: MemoryStore, priority: Priority | None, consistent: Strategy
) -> None:
    run = hf.open_run(store)
    with training(store, hf.Partial(priority=priority, consistent=consistent)) as started:
        states = started.train(13)
        before = {name: started.rows(name) for name in TABLES}
        others = started.state()
        view = {name: run.read_newest_rows(name, range(len(before[name]["weight"]))) for name in TABLES}
        started.guard.emulate_failure([1, 3], of=4)
        recovered = started.guard.recover([1, 3], of=4)
        for name in TABLES:
            count = len(before[name]["weight"])
            lost = torch.zeros(count, dtype=torch.bool)
            lost[count // 4 : count // 2] = lost[3 * count // 4 :] = True
            for column, live in started.rows(name).items():
                assert torch.equal(live[lost], view[name][column][lost])
                assert torch.equal(live[~lost], before[name][column][~lost])
                if priority is None and column == "weight":
                    assert torch.equal(live[lost], states[8][f"{name}.weight"][lost])
        assert torch.equal(started.state()["top.weight"], others["top.weight"])
        assert recovered.rows == sum(ROWS) // 2
        assert recovered.checkpoint_step == 8 and recovered.newest_step == (12 if priority else 8)
        expected = started.train(17)  # goes on, and the next checkpoint holds what came back
        assert same(restored(store, 16), expected[16])
        assert not any(torch.isnan(each).any() for each in expected[17].values())


@pytest.mark.parametrize("consistent", CONSISTENT, ids=repr)
def test_rows_above_checkpoints_in_few_bits_are_exact(store: MemoryStore, consistent: Strategy) -> None:
    strategy = hf.Partial(priority=hf.MFU(r=0.25), consistent=consistent)
    with training(store, strategy, precision=hf.Bits(4, difference=True)) as started:
        states = started.train(20)
        saved = stored_rows(store, hf.open_run(store).head().catalog.priority[-1])
        started.guard.emulate_failure([0, 1], of=2)
        started.guard.recover([0, 1], of=2)
        for name in TABLES:
            rows = started.rows(name)["weight"]
            exact = torch.tensor(sorted(saved[name]))
            assert len(exact) and torch.equal(rows[exact], states[20][f"{name}.weight"][exact])
            assert (rows - states[20][f"{name}.weight"]).abs().max() < 0.5 and not rows.isnan().any()


def test_a_part_lost_before_the_optimizers_first_save_comes_back_with_fresh_slots(store: MemoryStore) -> None:
    with training(store, hf.Partial(priority=None)) as started:
        weights = started.rows("emb.0")["weight"]
        started.train(3)
        assert started.rows("emb.0")["exp_avg"].any()
        started.guard.emulate_failure([0], of=1)
        assert started.guard.recover([0], of=1).checkpoint_step == 0
        rows = started.rows("emb.0")
        assert torch.equal(rows["weight"], weights)
        assert not rows["exp_avg"].any() and not rows["exp_avg_sq"].any()


def test_servers_divide_every_table_without_overlap() -> None:
    for rows in (0, 1, 3, 40, 301):
        for of in (1, 2, 7, 50):
            held = [
                row
                for server in range(of)
                for a, b in Servers(numbers=(server,), of=of).ranges(rows)
                for row in range(a, b)
            ]
            assert held == list(range(rows))
    assert Servers(numbers=(3, 5), of=8).share == 0.25


@pytest.mark.parametrize(("servers", "of"), [([], 4), ([4], 4), ([-1], 4), ([1, 1], 4), ([0], 0), ([0, 1, 2], 2)])
def test_servers_that_do_not_exist_are_refused(store: MemoryStore, servers: list[int], of: int) -> None:
    with training(store, hf.Partial()) as started:
        state = started.state()
        for act in (started.guard.recover, started.guard.emulate_failure):
            with pytest.raises(ConfigurationError, match="of"):
                act(servers, of=of)
        assert same(started.state(), state)


def test_servers_without_a_row_are_refused_because_nothing_would_come_back(store: MemoryStore) -> None:
    with training(store, hf.Partial()) as started:
        state = started.state()
        for act in (started.guard.recover, started.guard.emulate_failure):
            with pytest.raises(ConfigurationError, match=r"\[0\] of 100000 hold no row of any table .* of="):
                act([0], of=100_000)
        assert same(started.state(), state)


def test_without_any_checkpoint_nothing_comes_back_and_that_is_said(store: MemoryStore) -> None:
    with training(store, hf.Full()) as started:
        started.train(2)
        with pytest.raises(CheckpointNotFound, match="no checkpoint to recover rows from"):
            started.guard.recover([0], of=2)


def test_a_damaged_priority_save_is_passed_over(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    with training(store, hf.Partial(priority=hf.MFU(r=0.25))) as started:
        started.train(13)
        damage(store, hf.open_run(store).priority_saves()[-1].id)
        with caplog.at_level(logging.WARNING, "holdfast"):
            recovered = started.guard.recover([0, 1], of=2)
        assert recovered.newest_step == 10
        assert "rows saved at step 12 are damaged" in caplog.text


def test_full_recovery_in_place_is_a_resume_without_a_new_process(store: MemoryStore) -> None:
    with training(store, hf.Partial(priority=hf.MFU(r=0.25), consistent=hf.Consecutive())) as started:
        started.train(13)
        started.guard.emulate_failure([0], of=2)
        assert started.guard.recover_fully() == 8
        assert same(started.state(), uninterrupted(8))
        assert hf.open_run(store).priority_saves() == []
        assert same(started.train(21)[21], uninterrupted(21))
    assert same(restored(store), uninterrupted(21))
    assert [info.step for info in hf.open_run(store).checkpoints()] == [0, 8, 16, 21]


def test_full_recovery_inside_the_loop_over_batches_is_refused(store: MemoryStore) -> None:
    model = nn.Embedding(20, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = StatefulDataLoader(list(range(20)), batch_size=2)
    with hf.Checkpointer(
        store,
        model=model,
        optimizer=optimizer,
        loader=loader,
        save=hf.EverySteps(4),
        strategy=hf.Partial(),
        overlap=hf.Overlap.WAIT,
    ) as guard:
        guard.resume()
        seen: list[int] = []
        for batch in guard.batches():
            seen += batch.tolist()
            model(batch).sum().backward()
            optimizer.step()
            guard.step()
            if guard.steps == 6:
                with pytest.raises(RunError, match="leave the loop"):
                    guard.recover_fully()
                break
        assert guard.recover_fully() == 4
        rest = [row for batch in guard.batches() for row in batch.tolist()]
        assert seen[:8] + rest == list(range(20))


# ---- the meter ---------------------------------------------------------------------------------------------------


def test_the_meter_counts_what_failures_take_and_survives_restarts(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = hf.Partial(budget=hf.PLS(0.05, total_samples=100 * 10, samples_per_step=10))
    with training(store, strategy) as first:
        first.train(11)
        assert first.guard.stats.pls == 0.0
        recovered = first.guard.recover([0, 1], of=4)
        assert recovered.pls == first.guard.stats.pls == pytest.approx(0.5 * 3 / 100)
        first.train(16)  # the next checkpoint holds the meter
        assert not caplog.records
    with training(store, strategy) as second:
        assert second.guard.stats.pls == pytest.approx(0.015)
        second.train(23)
        second.guard.recover([0, 1], of=4)
        assert second.guard.stats.pls == pytest.approx(0.015 + 0.5 * 7 / 100)
        assert "the PLS budget of 0.05" in caplog.text
        assert second.guard.recover_fully() == 16
        assert second.guard.stats.pls == pytest.approx(0.015)  # what was lost later is trained again
    assert hf.open_run(store).summary().pls == pytest.approx(0.015)


def test_the_loader_tells_the_meter_how_long_the_training_is(store: MemoryStore) -> None:
    model = nn.Embedding(20, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = StatefulDataLoader(list(range(20)), batch_size=2)
    with hf.Checkpointer(
        store, model=model, optimizer=optimizer, loader=loader, save=hf.Never(), strategy=hf.Partial(budget=hf.PLS(0.9))
    ) as guard:
        guard.resume()
        for batch in guard.batches(2):
            model(batch).sum().backward()
            optimizer.step()
            guard.step()
            if guard.steps == 5:
                assert guard.recover([0], of=4).pls == pytest.approx(0.25 * 5 / 10)
        assert guard.recover([0], of=4).pls == pytest.approx(0.125 + 0.25 * 20 / 20)  # longer than was said


@pytest.mark.parametrize("budget", [hf.PLS(0.1), hf.PLS(0.1, total_samples=100)])
def test_a_meter_that_cannot_count_says_what_it_needs(store: MemoryStore, budget: hf.PLS) -> None:
    with pytest.raises(ConfigurationError, match=r"samples_per_step=\.\.\."):
        Training(store, hf.Partial(budget=budget))


def test_a_table_that_is_no_longer_the_same_is_refused_at_a_priority_save(store: MemoryStore) -> None:
    with pytest.raises(ModelMismatch), training(store, hf.Partial(priority=hf.MFU(r=0.25))) as started:
        started.train(5)
        started.model.emb[0].weight = nn.Parameter(started.model.emb[0].weight.detach().clone())
        started.train(8)


# ---- saves that are still under way ------------------------------------------------------------------------------


class Gate:
    """Holds every commit of a save of rows or of a checkpoint back until it is opened."""

    def __init__(self, store: FaultyStore) -> None:
        self._open = threading.Event()
        store.before = self._before

    def open(self) -> None:
        self._open.set()

    def _before(self, operation: Operation) -> None:
        if operation.kind == "put" and operation.name.endswith("/checkpoint"):
            assert self._open.wait(60.0)


def test_rows_due_while_a_save_is_under_way_are_saved_after_it_as_they_are_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    store = FaultyStore(MemoryStore())
    gate = Gate(store)
    started = Training(store, hf.Partial(priority=hf.MFU(r=0.25)), overlap=hf.Overlap.SKIP)
    with started.guard:
        started.guard.resume()
        for step in range(3):
            started.guard.step(loss=train_step(started.model, started.optimizers, step))
        assert started.guard.stats.priority_late == 1  # due at step 2, once
        assert "step 2: the priority save due now waits for the save of step 0" in caplog.text
        gate.open()
        started.guard.drain()
        started.guard.step(loss=train_step(started.model, started.optimizers, 3))
        started.guard.drain()
        assert [info.step for info in hf.open_run(store).priority_saves()] == [4]
        assert started.guard.stats.priority_saves == 1 and started.guard.stats.priority_failed == 0


def test_a_loop_that_waits_for_its_saves_waits_to_save_rows_and_a_lost_part_does_not_come_from_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    store = FaultyStore(MemoryStore())
    gate = Gate(store)
    monkeypatch.setattr(caplog.handler, "emit", lambda record: gate.open())  # told that it will wait, right before it
    started = Training(store, hf.Partial(priority=hf.MFU(r=0.25)), overlap=hf.Overlap.WAIT)
    with started.guard:
        started.guard.resume()
        started.guard.step(loss=train_step(started.model, started.optimizers, 0))
        started.guard.step(loss=train_step(started.model, started.optimizers, 1))
        assert started.guard.stats.priority_late == 1
        recovered = started.guard.recover([0, 1], of=2)
        assert (recovered.checkpoint_step, recovered.newest_step) == (0, 2)
