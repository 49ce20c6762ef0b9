"""What goes wrong while increments are rearranged costs time and space, never a row."""

from __future__ import annotations

import threading

import pytest

import holdfast as hf
from holdfast.format.catalog import CATALOG_PREFIX, Catalog
from holdfast.run import Run
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import Fault, FaultyStore, Operation
from tests.crash.jobs import Job, check_exact
from tests.grid import Trainer, Truth, restored, same
from tests.session.mortal import MortalAgent, mortal_agents

GRID = hf.Grid(rule=hf.DeadShare(0.05), reset=False)
FAULTS = (Fault.UNAVAILABLE, Fault.UNKNOWN, Fault.FULL)


def life(store: FaultyStore) -> Job:
    """Three saves, each rearranged before the next; a save that failed is tried once more."""
    job = Job(store, GRID, grace_s=0.0)
    with job.guard:
        for _ in range(3):
            job.train()
            if job.save() or job.save():
                job.guard.drain(arranged=True)
    return job


def first_round(store: FaultyStore) -> tuple[int, int]:
    """The numbers of its first and of its last operation, the look that confirms its commit."""
    names = [operation.name.rpartition("/")[2] for operation in store.history]
    first = next(number for number, name in enumerate(names, 1) if name.startswith("rows-"))
    commit = next(n for n, o in enumerate(store.history, 1) if n > first and o.kind == "put" and "catalog/" in o.name)
    assert store.history[commit] == Operation(kind="list", name="catalog/")
    return first, commit + 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_any_operation_of_a_round_loses_nothing(fault: Fault) -> None:
    clean = FaultyStore(MemoryStore())
    life(clean)
    first, last = first_round(clean)
    for number in range(first, last + 1):
        store = FaultyStore(MemoryStore(), {number: fault})
        job = life(store)
        try:
            check_exact(store, job.states)
        except BaseException as error:
            error.add_note(f"{fault.name} at operation {number}, {store.history[number - 1]}")
            raise


def long_life(store: FaultyStore) -> Job:
    """Saves until an outline was written twice; one that failed is tried once more."""
    job = Job(store, GRID, grace_s=0.0)
    with job.guard:
        for _ in range(9):
            job.train()
            if job.save() or job.save():
                job.guard.drain(arranged=True)
    return job


def second_outline(store: FaultyStore) -> range:
    """The numbers of its operations, the collection of the first one included."""
    puts = [n for n, each in enumerate(store.history, 1) if each.kind == "put" and "/outline-" in each.name]
    assert len(puts) >= 2
    deleted = next(n for n, each in enumerate(store.history, 1) if n > puts[1] and each.kind == "delete")
    return range(puts[1], deleted + 2)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_any_operation_of_an_outline_loses_nothing(fault: Fault) -> None:
    clean = FaultyStore(MemoryStore())
    long_life(clean)
    for number in second_outline(clean):
        store = FaultyStore(MemoryStore(), {number: fault})
        job = long_life(store)
        try:
            check_exact(store, job.states)
            assert Run(store).verify() == []
        except BaseException as error:
            error.add_note(f"{fault.name} at operation {number}, {store.history[number - 1]}")
            raise


@pytest.mark.timeout(20)
def test_draining_does_not_wait_for_an_agent_that_is_gone_for_good() -> None:
    with mortal_agents():
        job = Job(MemoryStore(), GRID)
        job.train()
        job.save()
        for deaths in range(1, 5):  # one more than are replaced at once
            MortalAgent.born[-1].die(after=0)
            job.train_until(lambda deaths=deaths: job.guard.stats.agent_deaths == deaths)
        job.guard.drain(arranged=True)
        job.guard.close()


# ---- saves that keep arriving -------------------------------------------------------------------------------------


class Crowd:
    """Saves that come so fast that one is always under way: what follows a commit waits for the next save to begin."""

    def __init__(self, store: FaultyStore) -> None:
        self._changed = threading.Condition()
        self._begun = self._ended = self._looks = 0
        self._over = False
        store.before = self._before

    def disperse(self) -> None:
        """No more saves will come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _before(self, operation: Operation) -> None:
        what, name = operation.kind, operation.name
        with self._changed:
            if what == "put" and name.startswith("leases/writer-"):
                self._begun += 1
                self._changed.notify_all()
            elif what == "put" and name.endswith("/checkpoint"):
                self._ended += 1
                self._looks = 0
            elif what == "list" and name == CATALOG_PREFIX and "commit" in threading.current_thread().name:
                self._looks += 1
                if self._looks == 3:  # one before the commit, one to confirm it; then the trainer is told
                    assert self._changed.wait_for(lambda: self._over or self._begun > self._ended, 20.0)


def reasons(store: Store) -> list[str]:
    """Why each commit was made, in their order."""
    return [Catalog.decode(store.get(info.name), name=info.name).reason for info in store.list(CATALOG_PREFIX)]


@pytest.mark.parametrize("max_postponed", [1, 3])
def test_saves_that_keep_arriving_do_not_starve_rearrangement(max_postponed: int) -> None:
    inner, truth = MemoryStore(), Truth()
    grid = hf.Grid(rule=hf.DeadShare(0.05), reset=False, max_postponed=max_postponed)
    store = FaultyStore(inner)
    with Trainer(store, grid, truth, uploads=2, buffer_bytes=8 * 65536) as trainer:
        crowd, states = Crowd(store), {}
        for number in range(16):
            trainer.move({"wide": [number, 30]})
            trainer.guard.save()
            states[trainer.guard.steps] = trainer.model.state()
        crowd.disperse()
    saves = [len(saved) for saved in "".join(r[0] for r in reasons(inner) if r in ("save", "rearrange")).split("r")]
    assert len(saves) > 2 and trainer.guard.stats.grid.postponed > 0
    assert saves[0] <= 3 + max_postponed + 1  # the third one replaces rows; one may be in the queue already
    assert max(saves[1:]) <= 1 + max_postponed + 1
    run = Run(inner)
    assert all(same(restored(run, info.id), states[info.step]) for info in run.checkpoints())
