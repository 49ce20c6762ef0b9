"""When a grid takes its next baseline: by what changed, whatever the clock says and however the rest has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random

import pytest

import holdfast as hf
from holdfast.policy import Strategy
from holdfast.run import Run
from holdfast.runtime import Runtime
from holdfast.storage import MemoryStore
from holdfast.testing.faults import FaultyStore, Operation
from holdfast.types import Kind
from tests.grid import ROWS, Trainer, Truth, rows_above

GRID = hf.Grid(rule=hf.DeadShare(0.25))
SAVES = 24


def stream() -> Iterator[dict[str, list[int]]]:
    """Some rows of each table, seldom most of them."""
    chance = Random(5)
    for number in range(SAVES):
        share = 0.75 if number % 7 == 6 else 0.12
        yield {name: sorted(chance.sample(range(rows), int(share * rows))) for name, rows in ROWS.items()}


class Erratic:
    """A machine on which everything takes as long as it likes: a clock that runs, stands still and jumps."""

    def __init__(self, seed: int, put_s: float, get_s: float) -> None:
        self._chance = Random(seed)
        self._now_s = 0.0
        self._takes_s = {"put": put_s, "put_new": put_s, "get": get_s, "get_range": get_s}
        self.runtime = Runtime(monotonic_s=self._monotonic_s)

    def before(self, operation: Operation) -> None:
        """A call to the store."""
        self._now_s += self._takes_s.get(operation.kind, 0.0) * self._chance.choice([0.01, 1, 30])

    def _monotonic_s(self) -> float:
        self._now_s += self._chance.choice([0.0, 0.001, 5.0])
        return self._now_s


def kinds_of(
    machine: Erratic, strategy: Strategy = GRID, *, arranged: bool = False, restarts: Sequence[int] = ()
) -> list[Kind]:
    """The kinds of a run's checkpoints, each of which is checked; ``restarts``: the saves before which it dies."""
    store, truth = MemoryStore(), Truth()
    slow = FaultyStore(store, before=machine.before)
    trainer = Trainer(slow, strategy, truth, runtime=machine.runtime)
    for number, ids in enumerate(stream()):
        if number in restarts:
            trainer.guard.close()
            trainer = Trainer(slow, strategy, truth, runtime=machine.runtime)
        trainer.save(ids, arranged=arranged)
    trainer.guard.close()
    run = Run(store)
    truth.check(run)
    assert all(rows_above(run, info.id) == 0 for info in run.checkpoints() if info.kind is Kind.FULL)
    return [info.kind for info in run.checkpoints()]


@pytest.fixture(scope="module")
def expected() -> list[Kind]:
    return kinds_of(Erratic(0, 0.0, 0.0))


def test_a_stream_that_gathers_more_than_a_baseline_is_worth_takes_some(expected: list[Kind]) -> None:
    assert expected[0] is Kind.FULL
    assert 2 < expected.count(Kind.FULL) < SAVES / 3, expected
    assert (Kind.FULL, Kind.FULL) not in pairwise(expected)


@pytest.mark.parametrize(
    "machine",
    [lambda: Erratic(1, 1.0, 0.001), lambda: Erratic(2, 0.001, 10.0), lambda: Erratic(3, 5.0, 5.0)],
    ids=["slow writes", "slow reads", "all slow"],
)
@pytest.mark.parametrize("arranged", [False, True], ids=["rounds at will", "rounds at once"])
def test_the_same_stream_takes_the_same_baselines_whatever_the_machine_does(
    expected: list[Kind], machine: Callable[[], Erratic], arranged: bool
) -> None:
    assert kinds_of(machine(), arranged=arranged) == expected


def test_a_restart_changes_no_decision(expected: list[Kind]) -> None:
    assert kinds_of(Erratic(4, 0.1, 0.1), restarts=[1, 5, 6, 13, 20]) == expected


def test_no_reset_means_one_baseline() -> None:
    assert kinds_of(Erratic(5, 5.0, 5.0), hf.Grid(reset=False)).count(Kind.FULL) == 1
