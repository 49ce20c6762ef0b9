"""All catalogs of a run are gone and its data is there: nobody begins anew on it, and nobody takes it for orphans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import take_over
from holdfast.errors import DamagedData
from holdfast.format.catalog import CATALOG_PREFIX, checkpoint_id, intent_name
from holdfast.run import Run
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import FaultyStore, Operation
from tests.crash.jobs import Job, check_exact
from tests.crash.scripted import Training

USES: dict[str, Callable[[Store], object]] = {
    "a trainer": Job,
    "a list": lambda store: Run(store).checkpoints(),
    "a restore": lambda store: Run(store).restore(model=Training().model),
    "a prune": lambda store: Run(store).prune(hf.KeepLast(1), grace_s=0.0),
    "a follower": lambda store: hf.Follower(store, Training().model).update(),
}


def without_catalogs(store: Store) -> dict[str, bytes]:
    """Delete them; what they were."""
    catalogs = {info.name: bytes(store.get(info.name)) for info in store.list(CATALOG_PREFIX)}
    store.delete(catalogs)
    return catalogs


@pytest.mark.parametrize("use", USES)
def test_whoever_uses_the_run_is_told_and_changes_nothing(use: str) -> None:
    store = MemoryStore()
    job = Job(store)
    with job.guard:
        job.train()
        job.guard.save(wait=True)
    catalogs = without_catalogs(store)
    before = {info.name for info in store.list()}
    with pytest.raises(DamagedData, match=r"the run's catalogs.*were lost or deleted.*use another URL"):
        USES[use](store)
    assert {info.name for info in store.list()} == before
    for name, data in catalogs.items():
        store.put(name, data)
    check_exact(store, job.states)


def test_verify_says_so() -> None:
    store = MemoryStore()
    job = Job(store)
    with job.guard:
        job.train()
        job.guard.save(wait=True)
    without_catalogs(store)
    (problem,) = Run(store).verify()
    assert problem.object_name == CATALOG_PREFIX and "contains data" in problem.what


def test_a_run_that_another_trainer_begins_just_now_is_not_taken_for_a_lost_one() -> None:
    store = MemoryStore()

    def begin(operation: Operation) -> None:
        if operation == Operation(kind="list", name="data/"):  # after the look at catalog/, which was empty
            Chain(store).commit(take_over())
            store.put(intent_name(checkpoint_id(1, 1, "00c0ffee")), b"of the other's first save")

    head = Chain(FaultyStore(store, before=begin)).head()
    assert head is not None and head.catalog.number == 1


def test_foreign_files_in_a_folder_of_that_name_are_no_data() -> None:
    store = MemoryStore()
    store.put("data/train.csv", b"1,2,3")
    store.put("data/samples/0.bin", b"4")
    assert Chain(store).head() is None
