"""A resume that is interrupted anywhere; readers and collectors that meet."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.errors import CheckpointNotFound
from holdfast.format.catalog import checkpoint_id, intent_name, part_list_name
from holdfast.policy import Strategy
from holdfast.run import Run
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.power import PowerCut
from holdfast.testing.runtime import with_runtime
from tests.crash.jobs import Clock, Job, check_exact, steps_of
from tests.crash.scripted import Training
from tests.tiny import same


def trained(strategy: Strategy) -> tuple[MemoryStore, Job]:
    """A run with a save at each of three steps, and the job that made it."""
    store = MemoryStore()
    job = Job(store, strategy)
    with job.guard:
        for _ in range(3):
            job.train()
            job.guard.save(wait=True)
    return store, job


def copy_of(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for info in store.list():
        copy.put(info.name, store.get(info.name))
    return copy


def resume(store: Store, step: int | None = None) -> Job:
    job = Job(store)
    with job.guard:
        job.guard.resume(step)
    return job


@pytest.mark.parametrize("step", [None, 2])
def test_a_resume_interrupted_at_any_operation_can_be_repeated(step: int | None) -> None:
    store, job = trained(hf.Consecutive())
    clean = FaultyStore(copy_of(store))
    resume(clean, step)
    for number in range(1, clean.operations + 1):
        copy = copy_of(store)
        with pytest.raises(PowerCut):
            resume(FaultyStore(copy, {number: Fault.POWER_CUT}), step)
        check_exact(copy, job.states)
        live = [info.step for info in Run(copy).checkpoints() if not info.abandoned]
        assert live in ([1, 2, 3], [1, 2])  # it may have gone back already
        assert same(resume(copy).training.state(), job.states[live[-1]])
        assert steps_of(copy) == [1, 2, 3]


@pytest.mark.parametrize("how", ["restore", "read_rows"])
def test_what_is_being_read_is_not_pulled_away_by_a_prune(how: str) -> None:
    store, job = trained(hf.Full())

    def prune(operation: Operation) -> None:
        if operation.kind == "get_range":  # the reader has chosen its checkpoint and starts to read rows
            Run(store).prune(hf.KeepLast(1), grace_s=0.0)

    reader = FaultyStore(store, before=prune)
    run = with_runtime(Run, Clock().runtime)(reader)
    training = Training()
    if how == "restore":
        run.restore(2, model=training.model, optimizer=training.optimizers, extra=training.extra)
        assert same(training.state(), job.states[2])
    else:
        assert run.read_rows("emb.0", range(700), step=2)["weight"].equal(job.states[2]["emb.0.weight"])


def test_a_prune_during_a_resume_leaves_the_newest_and_tells_of_one_that_it_dropped() -> None:
    store, job = trained(hf.Full())

    def prune(operation: Operation) -> None:
        if operation.kind == "get_range":
            Run(store).prune(hf.KeepLast(1), grace_s=0.0)

    with pytest.raises(CheckpointNotFound, match="was dropped while it was being restored: resume again"):
        resume(FaultyStore(store, before=prune), 2)
    assert same(resume(FaultyStore(store, before=prune)).training.state(), job.states[3])


def test_what_was_read_during_a_prune_is_deleted_by_the_next_one() -> None:
    store, _ = trained(hf.Full())
    second = next(info.id for info in Run(store).checkpoints() if info.step == 2)

    def prune(operation: Operation) -> None:
        if operation.kind == "get_range":
            Run(store).prune(hf.KeepLast(1), grace_s=0.0)

    with_runtime(Run, Clock().runtime)(FaultyStore(store, before=prune)).restore(2, model=Training().model)
    assert any(second in info.name for info in store.list("data/"))
    Run(store).prune(hf.KeepLast(1), grace_s=0.0)
    assert not any(second in info.name for info in store.list("data/"))


def test_a_checkpoint_that_was_dropped_before_the_readers_lease_is_not_read() -> None:
    store, _ = trained(hf.Full())

    def prune(operation: Operation) -> None:
        if operation.kind == "put" and operation.name.startswith("leases/reader"):
            Run(store).prune(hf.KeepLast(1), grace_s=0.0)

    run = with_runtime(Run, Clock().runtime)(FaultyStore(store, before=prune))
    with pytest.raises(CheckpointNotFound, match="the checkpoint of step 1 has just been dropped"):
        run.restore(1, model=Training().model)


def test_only_what_nobody_can_finish_any_more_is_collected() -> None:
    store, first = trained(hf.Full())  # its term was 1
    left = {term: intent_name(checkpoint_id(9, term, "0badcafe")) for term in (1, 2, 3)}
    for name in left.values():
        store.put(name, b"of a writer that died, or of a newer term's that is at work")
    second = Job(store, grace_s=0.0)
    with second.guard:
        second.guard.resume()
        second.train()
        second.guard.save(wait=True)
    kept = {info.name for info in store.list("data/") if "0badcafe" in info.name}
    called_off = part_list_name(checkpoint_id(9, 2, "0badcafe"))  # stays until nobody can have that term any more
    assert kept == {called_off, left[3]}
    check_exact(store, {**first.states, **second.states})
