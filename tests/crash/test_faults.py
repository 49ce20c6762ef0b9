"""Stores that are away, full, forbidden or silent: the save fails, is told and tried again; the training goes on."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import AccessDenied, StorageUnavailable
from holdfast.format.catalog import catalog_name
from holdfast.storage import MemoryStore
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.server import S3Place, S3Server
from tests.crash.jobs import SETTINGS, Job, check_exact, steps_of
from tests.crash.scripted import STRATEGIES, Training
from tests.tiny import same

FAULTS = (Fault.UNAVAILABLE, Fault.UNKNOWN, Fault.FULL)


class Away:
    """Makes a FaultyStore unreachable while it is set."""

    def __init__(self) -> None:
        self.is_set = False

    def __call__(self, operation: Operation) -> None:
        if self.is_set:
            raise StorageUnavailable(f"nobody answers {operation.kind} of {operation.name}")


def test_a_store_that_is_away_for_a_while_is_tried_again_with_growing_pauses() -> None:
    store = FaultyStore(MemoryStore(), dict.fromkeys(range(12, 18), Fault.UNAVAILABLE))
    job = Job(store, retry_s=60.0)
    with job.guard:
        job.train(2)
        assert job.save()
    assert job.guard.stats.failed == 0
    assert len(job.clock.pauses_s) == 6
    assert job.clock.pauses_s[5] > 4 * job.clock.pauses_s[0]
    check_exact(store, job.states)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_goes_on_while_the_store_is_away_and_the_next_save_holds_everything(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    away = Away()
    store = FaultyStore(MemoryStore(), before=away)
    job = Job(store, STRATEGIES[strategy])
    with job.guard:
        job.train(2)
        assert job.save()
        away.is_set = True
        job.train(1)
        job.guard.save()
        job.train_until(lambda: job.guard.stats.failed == 1)
        assert "was not committed" in caplog.text and "includes its rows" in caplog.text
        away.is_set = False
        saved_at = job.guard.steps
        assert job.save()
    assert steps_of(store) == [2, saved_at]
    check_exact(store, job.states)


def test_a_failed_save_is_tried_again_without_being_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    away = Away()
    store = FaultyStore(MemoryStore(), before=away)
    job = Job(store)
    with job.guard:
        job.train(1)
        away.is_set = True
        job.guard.save()
        job.train_until(lambda: job.guard.stats.failed == 1)
        away.is_set = False
        job.clock.runtime.sleep(60.0)  # the pause after a failure
        job.train_until(lambda: job.guard.stats.committed == 1)
    check_exact(store, job.states)


def test_close_on_a_store_that_stays_away_says_what_is_not_saved_instead_of_waiting_for_ever() -> None:
    away = Away()
    store = FaultyStore(MemoryStore(), before=away)
    job = Job(store, retry_s=30.0)
    job.train(2)
    away.is_set = True
    with pytest.raises(hf.SaveFailed, match="the checkpoint of step 2 was not committed: StorageUnavailable"):
        job.guard.close()


def life(store: FaultyStore, strategy: str) -> tuple[Job, list[int]]:
    """A run of three saves, each a step after the one before; the job and the steps that were told to be committed.

    A save that failed is tried once more by close(), when the last step is not committed.
    """
    job = Job(store, STRATEGIES[strategy], grace_s=0.0)
    with job.guard:
        committed = []
        for _ in range(3):
            job.train()
            if job.save():
                committed.append(job.guard.steps)
    return job, sorted({*committed, job.guard.steps})


def check_a_fault_in_every_operation(fault: Fault, strategy: str) -> None:
    clean = FaultyStore(MemoryStore())
    life(clean, strategy)
    claimed = clean.history.index(Operation(kind="put", name=catalog_name(1))) + 2  # and the look that confirms it
    for number in range(claimed + 1, clean.operations + 1):
        store = FaultyStore(MemoryStore(), {number: fault})
        try:
            job, committed = life(store, strategy)
            assert len(committed) >= 2
            assert steps_of(store) == committed
            assert job.guard.stats.failed <= 1
            check_exact(store, job.states)
        except BaseException as error:
            error.add_note(f"{fault.name} at operation {number}, {store.history[number - 1]}")
            raise


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_any_operation_costs_at_most_one_save(fault: Fault) -> None:
    check_a_fault_in_every_operation(fault, "consecutive")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["full", "one_shot", "intermittent"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_any_operation_costs_at_most_one_save_under_any_strategy(fault: Fault, strategy: str) -> None:
    check_a_fault_in_every_operation(fault, strategy)


@pytest.mark.parametrize("retry_s", [0.0, 60.0])
def test_a_commit_whose_answer_was_lost_is_learnt_to_have_happened_and_happens_once(retry_s: float) -> None:
    clean = FaultyStore(MemoryStore())
    life(clean, "consecutive")
    number = clean.history.index(Operation(kind="put", name=catalog_name(2))) + 1  # the first save's commit
    store = FaultyStore(MemoryStore(), {number: Fault.UNKNOWN})
    job = Job(store, retry_s=retry_s)
    with job.guard:
        job.train()
        assert job.save()
    assert store.history[number - 1].name == catalog_name(2)
    assert (job.guard.stats.committed, job.guard.stats.failed) == (1, 0)
    assert steps_of(store) == [1]
    check_exact(store, job.states)


def test_credentials_that_may_only_read_are_told_before_training_and_can_restore(
    s3_server: S3Server, s3_place: S3Place, caplog: pytest.LogCaptureFixture
) -> None:
    with hf.Checkpointer(s3_place.url, options=s3_place.options, **_parts(training := Training())) as guard:
        guard.step(loss=training.step(1))
    reading = s3_server.options("reader")
    with (
        hf.Checkpointer(s3_place.url, options=reading, **_parts(Training())) as forbidden,
        pytest.raises(AccessDenied, match=r"catalog/.*access denied; check the credentials"),
    ):
        forbidden.resume()
    restored = Training()
    hf.open_run(s3_place.url, options=reading).restore(**_models(restored))
    assert same(restored.state(), training.state())
    assert "reading without a lease" in caplog.text


def _models(training: Training) -> dict[str, Any]:
    return {"model": training.model, "optimizer": training.optimizers, "extra": training.extra}


def _parts(training: Training) -> dict[str, Any]:
    return {**_models(training), "settings": hf.Settings(**{**SETTINGS, "retry_s": 10.0})}
