"""One read goes bad, or a disk gives an error where bytes should be: no good checkpoint is lost by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.checkpoint.commit import second_look
from holdfast.errors import AccessDenied, DamagedData, HoldfastError, RunError, StorageUnavailable, UnreadableData
from holdfast.format.catalog import CATALOG_PREFIX, DATA_PREFIX
from holdfast.run import Run
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.runtime import with_runtime
from holdfast.types import Doubt
from tests.crash.jobs import Clock, Job, check_exact
from tests.crash.scripted import STRATEGIES
from tests.tiny import same

LOOKS = 1 + len(second_look.PAUSES_S)
BAD_READS = (Fault.FLIPPED, Fault.SHORT, Fault.MISSING, Fault.UNREADABLE)


def trained(strategy: str = "full", steps: int = 3) -> tuple[MemoryStore, Job]:
    """A run with a save at each step, and the job that made it."""
    store = MemoryStore()
    job = Job(store, STRATEGIES[strategy])
    with job.guard:
        for _ in range(steps):
            job.train()
            job.guard.save(wait=True)
    return store, job


def copy_of(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for info in store.list():
        copy.put(info.name, store.get(info.name))
    return copy


def resumed(store: Store) -> Job:
    job = Job(store)
    with job.guard:
        job.guard.resume()
    return job


def folder(store: Store, step: int) -> str:
    return DATA_PREFIX + next(info.id for info in Run(store).checkpoints() if info.step == step)


class Failing:
    """Fails reads of what lies under a prefix, as often as it is told to."""

    def __init__(self, prefix: str, error: Callable[[str], HoldfastError], times: float = float("inf")) -> None:
        self.prefix, self.error, self.times = prefix, error, times

    def __call__(self, operation: Operation) -> None:
        if operation.kind in ("get", "get_range") and operation.name.startswith(self.prefix) and self.times > 0:
            self.times -= 1
            raise self.error(operation.name)


def unreadable(name: str) -> HoldfastError:
    return UnreadableData(name, "Input/output error")


@pytest.mark.parametrize("strategy", ["consecutive", "grid"])
def test_any_one_bad_read_during_a_resume_costs_nothing(strategy: str, caplog: pytest.LogCaptureFixture) -> None:
    store, job = trained(strategy)
    clean = FaultyStore(copy_of(store))
    resumed(clean)
    reads = [n for n, operation in enumerate(clean.history, start=1) if operation.kind in ("get", "get_range")]
    for number, at in enumerate(reads):
        copy = copy_of(store)
        caplog.clear()
        again = resumed(FaultyStore(copy, {at: BAD_READS[number % len(BAD_READS)]}))
        assert same(again.training.state(), job.states[3]), clean.history[at - 1]
        assert len(again.clock.pauses_s) == 1
        assert "a second read found it intact" in caplog.text
        assert not any(info.standing for info in Run(copy).checkpoints())


@pytest.mark.parametrize("fault", BAD_READS)
def test_one_bad_read_of_a_run_that_is_looked_at_is_read_again(fault: Fault) -> None:
    store, job = trained()
    clean = FaultyStore(copy_of(store))
    assert with_runtime(Run, Clock().runtime)(clean).verify() == []
    for number, operation in enumerate(clean.history, start=1):
        if operation.kind in ("get", "get_range"):
            assert with_runtime(Run, Clock().runtime)(FaultyStore(store, {number: fault})).verify() == []
    check_exact(store, job.states)


def test_a_checkpoint_that_reads_well_once_the_store_is_known_to_work_is_used_after_all() -> None:
    store, job = trained()
    failing = Failing(folder(store, 3), unreadable, times=LOOKS)
    again = resumed(FaultyStore(store, before=failing))
    assert failing.times == 0
    assert same(again.training.state(), job.states[3])
    assert not any(info.standing for info in Run(store).checkpoints())


@pytest.mark.parametrize("error", [unreadable, lambda name: DamagedData(name, "malformed")])
def test_what_stays_unreadable_does_not_block_the_run_and_is_kept_as_a_suspect(
    error: Callable[[str], HoldfastError], caplog: pytest.LogCaptureFixture
) -> None:
    store, job = trained()
    suspect = folder(store, 3)
    again = Job(FaultyStore(store, before=Failing(suspect, error)), hf.Full(), hf.KeepLast(1), grace_s=0.0)
    with again.guard:
        assert again.guard.resume() == 2
        assert "the checkpoint of step 3 is now suspect" in caplog.text
        assert same(again.training.state(), job.states[2])
        for _ in range(3):
            again.train()
            assert again.save()
    assert [(info.step, info.standing) for info in Run(store).checkpoints()] == [(3, "(abandoned, suspect)"), (5, "")]
    check_exact(store, {3: job.states[3], 5: again.states[5]})  # verified, and so cleared
    assert {info.doubt for info in Run(store).checkpoints()} == {None}
    Run(store).prune(hf.KeepLast(1), grace_s=0.0)
    assert not list(store.list(suspect))


def test_a_suspect_that_verify_finds_damaged_is_condemned_and_goes_with_the_next_prune() -> None:
    store, _ = trained()
    bundle = next(info.name for info in store.list(folder(store, 3)) if info.name.endswith(".safetensors"))
    data = bytearray(store.get(bundle))
    data[-1] ^= 1
    store.put(bundle, data)
    assert resumed(store).guard.steps == 2
    run = with_runtime(Run, Clock().runtime)(store)
    run.prune(hf.KeepLast(1), grace_s=0.0)
    assert [info.step for info in run.checkpoints()] == [2, 3]
    assert [problem.object_name for problem in run.verify()] == [bundle]
    assert [info.doubt for info in run.checkpoints()] == [None, Doubt.CONDEMNED]
    run.prune(hf.KeepLast(1), grace_s=0.0)
    assert [info.step for info in run.checkpoints()] == [2]


def test_a_verification_that_can_read_nothing_condemns_nothing() -> None:
    store, _ = trained()
    failing = Failing(folder(store, 3), unreadable)
    assert resumed(FaultyStore(store, before=failing)).guard.steps == 2
    failing.prefix = DATA_PREFIX
    assert with_runtime(Run, Clock().runtime)(FaultyStore(store, before=failing)).verify()
    assert [info.doubt for info in Run(store).checkpoints()] == [None, None, Doubt.SUSPECT]


@pytest.mark.parametrize(
    "error",
    [
        lambda name: StorageUnavailable(f"{name}: nobody answers"),
        lambda name: AccessDenied(f"{name}: the credentials have expired"),
        unreadable,
    ],
)
@pytest.mark.parametrize("prefix", [DATA_PREFIX, CATALOG_PREFIX])
def test_an_outage_changes_nothing_but_the_term(prefix: str, error: Callable[[str], HoldfastError]) -> None:
    store, job = trained()
    before = Run(store).checkpoints()
    with pytest.raises(HoldfastError):
        resumed(FaultyStore(store, before=Failing(prefix, error)))
    assert Run(store).checkpoints() == before
    assert same(resumed(store).training.state(), job.states[3])


def test_a_store_that_fails_again_after_it_worked_is_an_outage() -> None:
    store, job = trained()
    newest, older = folder(store, 3), folder(store, 2)
    reads: list[str] = []

    def fail(operation: Operation) -> None:
        """Step 3 cannot be read; step 2 can, until step 3 is tried a second time."""
        if operation.kind not in ("get", "get_range"):
            return
        reads.append(operation.name)
        was_older = any(name.startswith(older) for name in reads)
        is_again = was_older and any(
            name.startswith(newest) for name in reads[next(i for i, n in enumerate(reads) if n.startswith(older)) :]
        )
        if operation.name.startswith(newest) or (operation.name.startswith(older) and is_again):
            raise unreadable(operation.name)

    with pytest.raises(RunError, match="restored once but could not be restored again"):
        resumed(FaultyStore(store, before=fail))
    assert not any(info.standing for info in Run(store).checkpoints())
    assert same(resumed(store).training.state(), job.states[3])


def test_the_newest_catalog_is_passed_over_only_if_it_fails_again_once_an_older_one_was_read() -> None:
    store, job = trained()
    newest = max(info.name for info in store.list(CATALOG_PREFIX))
    failing = Failing(newest, unreadable, times=LOOKS)  # while the guard looks; then comes the take-over
    assert same(resumed(FaultyStore(copy_of(store), before=failing)).training.state(), job.states[3])
    assert failing.times == 0
    assert resumed(FaultyStore(store, before=Failing(newest, unreadable))).guard.steps == 2


def test_what_only_a_catalog_that_was_passed_over_may_list_is_no_orphan_yet() -> None:
    store, job = trained()
    newest, hidden = max(info.name for info in store.list(CATALOG_PREFIX)), folder(store, 3)
    catalog = bytes(store.get(newest))
    store.put(newest, b"damaged")
    for _ in range(2):  # the first one is of the term that passed over it, the second of a newer one
        again = Job(store, grace_s=0.0)
        with again.guard:
            again.guard.resume()
            again.train()
            assert again.save()
    assert list(store.list(hidden))
    store.put(newest, catalog)
    for info in [*store.list(CATALOG_PREFIX, after=newest)]:
        store.delete([info.name])
    check_exact(store, job.states)
