"""Others act while a round is under way: before every single operation of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

import holdfast as hf
from holdfast.run import Run
from holdfast.storage import MemoryStore
from holdfast.testing.faults import FaultyStore, Operation
from tests.grid import Trainer, Truth, bundles_named, bundles_stored, rows_above

GRID = hf.Grid(rule=hf.DeadShare(0.05), reset=False)
LATER = {"wide": [0, 1, 2, 20, 21], "short": [3], "flat": [9]}


@dataclass(slots=True)
class Race:
    """A trainer whose next save makes older ones due, and somebody who acts while they are rearranged."""

    inner: MemoryStore
    store: FaultyStore  # the trainer's
    truth: Truth
    trainer: Trainer

    @property
    def run(self) -> Run:
        return Run(self.inner)

    @classmethod
    def ready(cls) -> Race:
        inner, truth = MemoryStore(), Truth()
        store = FaultyStore(inner)
        trainer = Trainer(store, GRID, truth)
        trainer.save({"wide": [0], "short": [0], "flat": [0]})
        trainer.save({"wide": list(range(10)), "short": [2, 3, 4]})
        trainer.save({"wide": list(range(20, 30)), "flat": list(range(8, 12))}, arranged=True)
        return cls(inner, store, truth, trainer)

    def rearrange(self) -> None:
        self.trainer.save(LATER, arranged=True)


def operations_of_a_round(first: Callable[[Race], object]) -> tuple[int, int]:
    """How many operations after the save began the round begins, and how many after it its commit is confirmed."""
    race = Race.ready()
    first(race)
    before = race.store.operations
    race.rearrange()
    history = race.store.history[before:]
    commits = [n for n, each in enumerate(history) if each.kind == "put" and each.name.startswith("catalog/")]
    assert len(commits) == 3  # the save, the round, the collection
    race.trainer.guard.close()
    return commits[0] + 2, commits[1] + 2


def races(
    act: Callable[[Race], object], first: Callable[[Race], object] = lambda race: None
) -> Iterator[tuple[Race, list[object]]]:
    """One for each operation of the round, ahead of which somebody acts, and what came of it."""
    for number in range(*operations_of_a_round(first)):
        race = Race.ready()
        first(race)
        results: list[object] = []
        due = race.store.operations + number + 1

        def before(operation: Operation, race: Race = race, due: int = due, results: list[object] = results) -> None:
            if race.store.operations == due and not results:
                results.append(None)  # not again, whatever act() does
                results[0] = act(race)

        race.store.before = before
        race.rearrange()
        assert results, f"operation {number} never came"
        yield race, results


def test_another_commit_during_a_round_lets_it_plan_again() -> None:
    for race, _ in races(lambda race: race.run.annotate(2, auc=0.5)):
        (entry,) = [entry for entry in race.run.head().entries if entry.info.step == 2]
        assert entry.info.metrics == {"auc": 0.5}
        assert entry.rounds and race.trainer.guard.stats.grid.rounds > 0
        for info in race.run.checkpoints():
            assert rows_above(race.run, info.id) == race.truth.wanted(race.run, info.id)
        race.trainer.guard.close()
        race.truth.check(race.run)
        assert race.run.verify() == []
        assert bundles_named(race.inner) == bundles_stored(race.inner)


def test_a_trainer_that_takes_over_during_a_round_loses_nothing_and_goes_on() -> None:
    rounds = []
    for race, results in races(lambda race: Trainer(race.inner, GRID, race.truth)):
        (second,) = results
        assert isinstance(second, Trainer) and second.guard.steps == 4
        race.truth.check(race.run)
        rounds.append(sum(len(entry.rounds) for entry in race.run.head().entries))
        with pytest.raises(hf.TakenOver):
            race.trainer.save(LATER)
        with pytest.raises(hf.TakenOver):
            race.trainer.guard.close()
        second.save({"wide": [1, 2, 22], "flat": [9, 10]}, arranged=True)
        assert second.guard.stats.grid.rounds > 0
        second.guard.close()
        race.run.prune(hf.KeepAll(), grace_s=0.0)
        race.truth.check(race.run)
        assert race.run.verify() == []
        assert bundles_named(race.inner) == bundles_stored(race.inner)  # what the refused round wrote is gone
    assert set(rounds[:-1]) == {0} and rounds[-1] > 0  # refused until it was committed


def test_a_prune_during_a_round_lets_it_plan_again() -> None:
    def go_back_first(race: Race) -> None:
        race.trainer.guard.close()
        race.trainer = Trainer(race.store, GRID, race.truth, step=2)
        race.trainer.save({"wide": [20, 30]}, arranged=True)
        assert [info.abandoned for info in race.run.checkpoints()] == [False, False, True, False]

    for race, _ in races(lambda race: race.run.prune(hf.KeepLast(1), grace_s=0.0), first=go_back_first):
        assert [info.step for info in race.run.checkpoints()] == [1, 2, 3, 4]  # the abandoned one is gone
        assert race.trainer.guard.stats.grid.rounds > 0
        race.trainer.guard.close()
        race.run.prune(hf.KeepAll(), grace_s=0.0)
        race.truth.check(race.run)
        assert race.run.verify() == []
