"""Whatever is saved, in whatever order, under whatever rule: every kept checkpoint is read back bit for bit.

Random histories of saves, restarts, changes of mind and prunes; the truth is a copy of the tables at every save.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

import holdfast as hf
from holdfast.policy import Retention, Rule
from holdfast.run import Run
from holdfast.storage import MemoryStore
from tests.grid import (
    ROWS,
    Trainer,
    Truth,
    as_files,
    bundles_named,
    bundles_stored,
    check_plans,
    manifests,
    rows_above,
    unused_bytes,
)
from tests.independent.reader import IndependentRun

RULES = [
    hf.DeadShare(0.0),
    hf.DeadShare(0.05),
    hf.DeadShare(0.25),
    hf.DeadShare(1.0),
    hf.Pairs(0.0),
    hf.Pairs(0.02),
    hf.Pairs(0.02, check_range=False),
    hf.Pairs(0.02, check_membership=False),
    hf.Pairs(0.02, check_actual=False),
    hf.Pairs(0.3, check_range=False, check_membership=False, check_actual=False),
]
RETENTIONS = [hf.KeepLast(2), hf.KeepEvery(3), hf.KeepTagged(), hf.KeepLast(1) | hf.KeepTagged()]


class History:
    """A run under a rule, to which things happen by chance."""

    def __init__(self, chance: Random, rule: Rule, *, concatenate: bool) -> None:
        self.chance = chance
        self.rule = rule
        self.store = MemoryStore()
        self.run = Run(self.store)
        self.truth = Truth()
        self.strategy = hf.Grid(
            rule=rule, reset=False, concatenate=concatenate, max_postponed=self.chance.choice([1, 4])
        )
        self.forked = False  # or pruned: then some of what a round wrote for others may be left over
        self._after_unarranged: list[str] = []  # checkpoints that were saved before the one below was arranged
        self._arranged = True
        self.trainer = Trainer(self.store, self.strategy, self.truth)

    def save(self, *, arranged: bool) -> None:
        rows = {name: self.chance.choice([0, 1, 1, 3, count // 2, count]) for name, count in ROWS.items()}
        ids = {n: self.chance.sample(range(ROWS[n]), count) for n, count in rows.items() if self.chance.random() < 0.8}
        whole = [name for name in ROWS if self.chance.random() < 0.08]
        tag = self.chance.choice([None, None, "named"])
        checkpoint = self.trainer.save(ids, whole=whole, tag=tag, arranged=arranged)
        if not self._arranged:
            self._after_unarranged.append(checkpoint)
        self._arranged = arranged

    def restart(self) -> None:
        self.trainer.guard.close()
        self.trainer = Trainer(self.store, self.strategy, self.truth)

    def go_back(self) -> None:
        self.trainer.guard.close()
        live = [info.step for info in self.run.checkpoints() if not info.abandoned]
        self.forked = True
        step = self.chance.choice(live) if live else None
        self.trainer = Trainer(self.store, self.strategy, self.truth, step=step)

    def prune(self, retention: Retention) -> None:
        self.run.prune(retention, grace_s=0.0)
        self.forked = True

    def go_on(self) -> None:
        """Save, and perhaps something else."""
        self.save(arranged=self.chance.random() < 0.5)
        happens = self.chance.random()
        if happens < 0.15:
            self.restart()
        elif happens < 0.25:
            self.go_back()
        elif happens < 0.35:
            self.prune(self.chance.choice(RETENTIONS))
        if self.chance.random() < 0.2:
            self.truth.check(self.run)

    @property
    def settled(self) -> bool:
        """Whether no table was saved whole before what lay below was arranged; from then on nobody does."""
        parts = manifests(self.store)
        return not any(part.whole for each in self._after_unarranged if each in parts for part in parts[each][0].tables)

    def end(self) -> None:
        self.save(arranged=True)
        self.trainer.guard.close()
        self.run.prune(hf.KeepAll(), grace_s=0.0)


def lived(seed: int) -> History:
    """A history that has come to its end."""
    chance = Random(seed)
    history = History(chance, RULES[seed % len(RULES)], concatenate=chance.random() < 0.5)
    for _ in range(chance.randint(1, 10)):
        history.go_on()
    history.end()
    return history


@pytest.mark.parametrize("seed", range(60))
def test_every_kept_checkpoint_of_any_history_is_exact(seed: int, tmp_path: Path) -> None:
    history = lived(seed)
    run, store = history.run, history.store
    history.truth.check(run)
    check_plans(store)
    assert run.verify() == []
    history.truth.check(Run(as_files(store, tmp_path)))
    check_independently(tmp_path, history.truth)
    assert bundles_named(store) <= bundles_stored(store)
    if not history.forked:
        assert bundles_named(store) == bundles_stored(store)
    settled = history.settled
    for info in run.checkpoints():
        above, wanted = rows_above(run, info.id), history.truth.wanted(run, info.id)
        assert above >= wanted
        if history.rule == hf.DeadShare(0.0) and settled and not info.abandoned:
            assert above == wanted


def check_independently(folder: Path, truth: Truth) -> None:
    """A reader that knows nothing but the specification finds the same."""
    run = IndependentRun(folder)
    run.verify()
    for entry in run.checkpoints():
        tables = run.tables(entry["id"])
        for table, columns in truth.states[entry["id"]].items():
            for name, column in columns.items():
                assert tables[table][name].tobytes() == column.contiguous().view(torch.uint8).numpy().tobytes()


def histories_arranged_at_once(rule: Rule, cases: int) -> Iterator[History]:
    """Nothing is saved before what came before it is arranged."""
    for seed in range(cases):
        chance = Random(seed)
        history = History(chance, rule, concatenate=bool(seed % 2))
        for _ in range(chance.randint(2, 12)):
            history.save(arranged=True)
            if chance.random() < 0.2:
                history.restart()
        history.end()
        yield history


@pytest.mark.parametrize("rule", [hf.DeadShare(0.0), hf.Pairs(0.0)], ids=repr)
def test_where_every_replaced_record_is_split_off_no_restore_reads_one(rule: Rule) -> None:
    for history in histories_arranged_at_once(rule, cases=6):
        run = history.run
        for info in run.checkpoints():
            assert rows_above(run, info.id) == history.truth.wanted(run, info.id)


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_where_no_table_is_saved_whole_no_bundle_holds_a_byte_that_nothing_refers_to(rule: Rule) -> None:
    chance, store = Random(1), MemoryStore()
    with Trainer(store, hf.Grid(rule=rule, reset=False), Truth()) as trainer:
        trainer.save({name: [0] for name in ROWS})  # now all of them have their slots
        for _ in range(10):
            ids = {name: chance.sample(range(count), chance.randint(0, count // 2)) for name, count in ROWS.items()}
            trainer.save(ids, arranged=chance.random() < 0.5)
    Run(store).prune(hf.KeepAll(), grace_s=0.0)
    assert bundles_named(store) == bundles_stored(store)
    assert unused_bytes(store) == 0


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 1.0])
def test_a_share_bounds_what_is_read_for_nothing_and_what_is_rewritten(share: float) -> None:
    """One table, so that rows count as bytes do."""
    chance, store, truth = Random(0), MemoryStore(), Truth()
    run = Run(store)
    with Trainer(store, hf.Grid(rule=hf.DeadShare(share), reset=False), truth) as trainer:
        trainer.save({"wide": [0]})
        saved = 0
        for _ in range(25):
            ids = sorted({min(int(chance.expovariate(0.08)), ROWS["wide"] - 1) for _ in range(12)})
            newest = trainer.save({"wide": ids}, arranged=True)
            saved += len(ids)
            above = rows_above(run, newest)
            assert above - truth.wanted(run, newest) <= share * above
        assert 0 < trainer.guard.stats.grid.rows_moved <= saved / share
