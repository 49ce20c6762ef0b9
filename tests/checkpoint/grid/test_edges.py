"""Runs at the edges of what a grid is for, and runs that are a grid for a part of their life only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.errors import DamagedData
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.policy import Rule, Strategy
from holdfast.run import Run
from holdfast.storage import MemoryStore, Store
from holdfast.types import Kind
from tests.grid import ROWS, Trainer, Truth, as_files, bundles_named, bundles_stored, manifests, rows_above

RULES = [hf.DeadShare(0.0), hf.DeadShare(1.0), hf.Pairs(0.0), hf.Pairs(1.0)]
ALL = {name: range(count) for name, count in ROWS.items()}


def grid(rule: Rule = hf.DeadShare(0.0)) -> hf.Grid:  # noqa: B008 - frozen
    return hf.Grid(rule=rule, reset=False)


def check(store: MemoryStore, truth: Truth) -> None:
    run = Run(store)
    truth.check(run)
    assert run.verify() == []


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_history_of_one_checkpoint_has_nothing_to_rearrange(rule: Rule) -> None:
    store, truth = MemoryStore(), Truth()
    with Trainer(store, grid(rule), truth) as trainer:
        trainer.guard.drain(arranged=True)  # nothing yet
        only = trainer.save({"wide": [1, 2]}, arranged=True)
        assert trainer.guard.stats.grid.rounds == 0
    assert rows_above(Run(store), only) == 0
    check(store, truth)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_tables_that_never_change_have_nothing_to_rearrange(rule: Rule) -> None:
    store, truth = MemoryStore(), Truth()
    with Trainer(store, grid(rule), truth) as trainer:
        for _ in range(5):
            trainer.save({}, arranged=True)
        assert trainer.guard.stats.grid.rounds == 0
    run = Run(store)
    assert [rows_above(run, info.id) for info in run.checkpoints()] == [0] * 5
    check(store, truth)


@pytest.mark.parametrize("rule", [hf.DeadShare(0.0), hf.DeadShare(1.0), hf.Pairs(0.5)], ids=repr)
def test_of_tables_that_change_completely_every_time_each_checkpoint_reads_its_own_rows_alone(rule: Rule) -> None:
    store, truth = MemoryStore(), Truth()
    with Trainer(store, grid(rule), truth) as trainer:
        for _ in range(6):
            trainer.save(ALL, arranged=True)
    run = Run(store)
    for info in run.checkpoints():
        assert rows_above(run, info.id) == truth.wanted(run, info.id) <= sum(ROWS.values())
    assert bundles_named(store) == bundles_stored(store)
    assert not any("/rows-" in name for name in bundles_stored(store))  # nothing of any of them lives on
    check(store, truth)


def test_a_row_that_changes_every_time_costs_no_restore_more_than_one_record() -> None:
    store, truth = MemoryStore(), Truth()
    with Trainer(store, grid(), truth) as trainer:
        trainer.save({"flat": [7]})
        for _ in range(12):
            trainer.save({"flat": [7]}, arranged=True)
    run = Run(store)
    assert [rows_above(run, info.id) for info in run.checkpoints()] == [0] + [1] * 12
    check(store, truth)


@pytest.mark.parametrize("rule", [hf.DeadShare(0.05), hf.Pairs(0.0)], ids=repr)
def test_more_chunks_than_a_byte_can_number_are_told_apart(rule: Rule, tmp_path: Path) -> None:
    store, truth, chance = MemoryStore(), Truth(), Random(0)
    with Trainer(store, grid(rule), truth) as trainer:
        saved = [trainer.save({"flat": [0]})]
        saved += [trainer.save({"flat": chance.sample(range(ROWS["flat"]), 2)}) for _ in range(270)]
        trainer.guard.drain(arranged=True)
        assert trainer.guard.stats.grid.index_bytes == sum(ROWS.values()) + ROWS["flat"]  # two bytes for each of these
    for each in (store, as_files(store, tmp_path)):
        truth.check(Run(each), *saved[:3], *saved[250:270:6], saved[-1])


# ---- before and after ---------------------------------------------------------------------------------------------


def live_under(strategies: Sequence[Strategy], store: MemoryStore, truth: Truth) -> list[int]:
    """Save a few times under one strategy after the other; how many rounds each of them made."""
    chance, rounds = Random(0), []
    for strategy in strategies:
        with Trainer(store, strategy, truth) as trainer:
            for _ in range(4):
                trainer.save({name: chance.sample(range(count), count // 3) for name, count in ROWS.items()})
            trainer.guard.drain(arranged=True)
            rounds.append(trainer.guard.stats.grid.rounds)
    check(store, truth)
    return rounds


@pytest.mark.parametrize("rule", [hf.DeadShare(0.0), hf.Pairs(0.0)], ids=repr)
def test_a_run_may_be_consecutive_before_and_after_it_is_a_grid(rule: Rule) -> None:
    store, truth = MemoryStore(), Truth()
    rounds = live_under([hf.Consecutive(), grid(rule), hf.Consecutive(), grid(rule)], store, truth)
    assert rounds[0] == rounds[2] == 0 and rounds[1] and rounds[3]
    assert {info.kind for info in Run(store).checkpoints()[1:]} == {Kind.INCREMENTAL}
    if rule == hf.DeadShare(0.0):
        run = Run(store)
        newest = run.checkpoints()[-1].id
        assert rows_above(run, newest) == truth.wanted(run, newest)
    assert bundles_named(store) == bundles_stored(store)


def test_what_stands_on_a_differential_is_not_arranged_before_the_next_baseline() -> None:
    store, truth = MemoryStore(), Truth()
    rounds = live_under([hf.OneShot(), grid(), hf.Full(), grid()], store, truth)
    assert rounds[:3] == [0, 0, 0] and rounds[3]


def test_a_run_may_change_its_rule_at_every_restart() -> None:
    store, truth = MemoryStore(), Truth()
    live_under([grid(rule) for rule in (*RULES, *RULES[::-1])], store, truth)


def test_a_baseline_that_is_dropped_takes_its_grid_with_it() -> None:
    store, truth = MemoryStore(), Truth()
    live_under([grid()], store, truth)
    assert any(entry.rounds for entry in Run(store).head().entries)
    with Trainer(store, hf.Full(), truth, retention=hf.KeepLast(1)) as trainer:
        newest = trainer.save({"wide": [3]})
    assert {info.name.split("/")[1] for info in store.list("data/")} == {newest}
    check(store, truth)


# ---- larger than a block, and large -------------------------------------------------------------------------------


class Large:
    """One table under SGD, and what it was at every save."""

    def __init__(self, rows: int, dim: int, rule: Rule) -> None:
        torch.manual_seed(0)
        self.store = MemoryStore()
        self.table = nn.Embedding(rows, dim, sparse=True)
        self.optimizer = torch.optim.SGD(self.table.parameters(), lr=1.0)
        self.states: list[Tensor] = []
        self.guard = hf.Checkpointer(
            self.store,
            model=self.table,
            optimizer=self.optimizer,
            save=hf.Never(),
            strategy=grid(rule),
            retention=hf.KeepAll(),
            settings=hf.Settings(frame_bytes=8 * 2**20, grace_s=0.0, handle_sigterm=False),
        )

    def save(self, ids: np.ndarray) -> None:
        """Move these rows, save, and let all be arranged."""
        rows = torch.from_numpy(np.sort(ids))
        values = torch.rand(len(rows), self.table.embedding_dim)
        weight = self.table.weight
        weight.grad = torch.sparse_coo_tensor(rows[None], values, weight.shape, check_invariants=False)
        self.optimizer.step()
        self.guard.step()
        self.guard.save(wait=True)
        self.guard.drain(arranged=True)
        self.states.append(weight.detach().clone())

    def is_exact(self, step: int, store: Store | None = None) -> bool:
        table = nn.Embedding(*self.table.weight.shape)
        Run(store or self.store).restore(step, model=table)
        return torch.equal(table.weight.detach(), self.states[step - 1])


@pytest.mark.parametrize("rule", [hf.DeadShare(0.25), hf.Pairs(0.02)], ids=repr)
def test_an_interval_of_a_million_rows_is_rearranged(rule: Rule, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    large = Large(1_200_000, 4, rule)
    with large.guard:
        large.save(np.array([0]))
        large.save(chance.choice(1_200_000, 1_000_000, replace=False))
        large.save(chance.choice(1_200_000, 400_000, replace=False))
        assert large.guard.stats.grid.rows_moved >= 1_000_000
    files = as_files(large.store, tmp_path)
    assert all(large.is_exact(step) and large.is_exact(step, files) for step in (1, 2, 3))


def test_a_checkpoint_reads_only_the_blocks_of_a_chunk_that_hold_its_rows(tmp_path: Path) -> None:
    """Rows that step 3 replaced lie behind those that step 4 replaced: what is wrong there is nothing to step 3."""
    large = Large(40_000, 8, hf.DeadShare(0.9))
    ids = np.arange(40_000)
    with large.guard:
        for chosen in (ids[:1], ids[:30_000], ids[:30_000:2], ids[1:30_000:2]):
            large.save(chosen)
    (manifest,) = list(manifests(large.store).values())[1]
    chunk = max(manifest.tables[0].chunks, key=lambda chunk: chunk.place.length)
    assert [segment.replaced for segment in chunk.segments] == [1, 0] and chunk.place.length > 4 * BLOCK_BYTES
    name = manifest.bundles[chunk.place.bundle].name
    data = bytearray(large.store.get(name))
    data[chunk.place.offset + chunk.place.length - 1] ^= 1
    large.store.put(name, bytes(data))
    assert [problem.object_name for problem in Run(large.store).verify()] == [name]
    for store in (large.store, as_files(large.store, tmp_path)):
        assert large.is_exact(3, store) and large.is_exact(4, store)
        with pytest.raises(DamagedData):
            large.is_exact(2, store)
