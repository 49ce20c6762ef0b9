"""A disk that is full heals by itself, as far as something is due for deletion; nothing else goes.

On a disk in memory, where every byte is counted, and on a real, small filesystem with a real agent.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint.commit.lease import HeldLease
from holdfast.run import Run
from holdfast.storage import LocalStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.runtime import with_runtime
from tests.crash.jobs import Clock, Job, check_exact, steps_of
from tests.crash.scripted import Training
from tests.tiny import build, same, snapshot, train_step

GRACE_S = 600.0
ROOM_BYTES = 20_000  # a save does not fit into it


class Full:
    """A disk that three saves of an earlier trainer fill. Those that it dropped wait for their grace time to pass."""

    def __init__(self, retention: hf.Retention = hf.KeepLast(1), **settings: object) -> None:  # noqa: B008 - frozen
        self.disk = SimulatedDisk()
        self.store = LocalStore("/run", self.disk)
        self.job = Job(self.store, hf.Full(), retention, grace_s=GRACE_S, **settings)
        with self.job.guard:
            for _ in range(3):
                self.job.train()
                assert self.job.save()

    def fill(self, room_bytes: int = 0) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + room_bytes

    def resumed(self) -> Job:
        """The next trainer, on a disk that has not room enough for its save."""
        job = Job(self.store, hf.Full(), hf.KeepLast(1), grace_s=GRACE_S)
        assert job.guard.resume() == 3
        self.fill(ROOM_BYTES)
        job.train()
        return job

    @property
    def reserved_bytes(self) -> int:
        return len(self.disk.contents().get("/run/reserve+") or b"")


def test_a_save_deletes_what_is_due_before_it_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    full = Full()
    full.disk.now_s += GRACE_S + 1
    again = full.resumed()
    with again.guard:
        assert again.save()
        assert "is full: deleted" in caplog.text
    assert steps_of(full.store) == [4]
    check_exact(full.store, again.states)


def test_what_is_not_due_yet_stays_and_the_save_fails_until_it_is() -> None:
    full = Full()
    again = full.resumed()
    before = {info.name for info in full.store.list("data/")}
    with again.guard:
        assert not again.save()
        assert {info.name for info in full.store.list("data/")} >= before
        full.disk.now_s += GRACE_S + 1
        assert again.save()
    check_exact(full.store, again.states)


def test_what_somebody_reads_stays() -> None:
    full = Full()
    dropped = [item.folder for item in Run(full.store).head().garbage]
    full.disk.now_s += GRACE_S + 1
    again = full.resumed()
    with again.guard:
        with HeldLease(full.store, "reader", "a test", dropped, runtime=Clock().runtime):
            assert not again.save()
        assert all(list(full.store.list(f"data/{folder}/")) for folder in dropped)
        assert again.save()


def test_a_trainer_resumes_on_a_disk_without_a_free_byte_and_saves_again() -> None:
    full = Full()
    full.disk.now_s += GRACE_S + 1
    full.fill()
    again = Job(full.store, hf.Full(), hf.KeepLast(1), grace_s=GRACE_S)
    with again.guard:
        assert again.guard.resume() == 3
        assert same(again.training.state(), full.job.states[3])
        again.train()
        assert again.save()
    assert full.reserved_bytes == hf.Settings().reserve_bytes
    check_exact(full.store, again.states)


def test_a_prune_has_room_on_a_disk_without_a_free_byte_and_gives_it_back() -> None:
    full = Full(hf.KeepAll())
    full.fill()
    run = with_runtime(Run, Clock().runtime)(full.store)
    dropped, collected = run.prune(hf.KeepLast(1), grace_s=0.0)
    assert len(dropped) == 2 and collected.objects
    assert full.reserved_bytes >= hf.Settings().reserve_bytes // 2
    check_exact(full.store, full.job.states)


def test_a_prune_without_a_reserve_deletes_what_is_due_first() -> None:
    full = Full(reserve_bytes=0)
    full.disk.now_s += GRACE_S + 1
    full.fill()
    _, collected = with_runtime(Run, Clock().runtime)(full.store).prune(hf.KeepLast(1))
    assert collected.objects == 0 and steps_of(full.store) == [3]  # all was due, and gone before it committed
    assert not Run(full.store).head().garbage


@pytest.mark.parametrize("reserve_bytes", [0, hf.Settings().reserve_bytes])
def test_a_full_disk_can_be_read(reserve_bytes: int, caplog: pytest.LogCaptureFixture) -> None:
    full = Full(reserve_bytes=reserve_bytes)
    full.fill()
    training = Training()
    run = with_runtime(Run, Clock().runtime)(full.store)
    run.restore(3, model=training.model, optimizer=training.optimizers, extra=training.extra)
    assert same(training.state(), full.job.states[3])
    assert ("is full: reading without a lease" in caplog.text) == (reserve_bytes == 0)


# ---- a real filesystem -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a filesystem is not allowed here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


class Trainer:
    """A training with a real agent, on a model of which a few checkpoints fill the disk."""

    def __init__(self, url: Path, *, grace_s: float, retention: hf.Retention = hf.KeepLast(1)) -> None:  # noqa: B008
        self.model, self.optimizers = build(rows=(20_000, 40))
        self.guard = hf.Checkpointer(
            url,
            model=self.model,
            optimizer=self.optimizers,
            save=hf.Never(),
            strategy=hf.Full(),
            retention=retention,
            settings=hf.Settings(grace_s=grace_s, retry_s=5.0, takeover_s=30.0, handle_sigterm=False),
        )

    def train(self) -> None:
        self.guard.step(loss=train_step(self.model, self.optimizers, self.guard.steps))

    def save_until_full(self) -> int:
        """The step of the last save that was committed."""
        committed = 0
        for _ in range(50):
            self.train()
            try:
                self.guard.save(wait=True)
            except hf.SaveFailed as error:
                assert "the disk is full" in str(error)
                return committed
            committed = self.guard.steps
        raise AssertionError("the disk is larger than it should be")


def use_up(disk: Path) -> None:
    """Take the last byte."""
    with (disk / "of somebody else").open("wb", buffering=0) as file:
        for block in (2**16, 2**12, 1):
            try:
                while file.write(bytes(block)) == block:
                    pass
            except OSError:
                continue


def abandon(trainer: Trainer) -> None:
    """Leave as after an error: the last state is not saved."""
    trainer.guard.__exit__(RuntimeError, RuntimeError("the end of this trainer"), None)


def test_a_full_filesystem_is_read_resumed_and_saved_to_again(small_disk: Path) -> None:
    url = small_disk / "run"
    first = Trainer(url, grace_s=3600.0)
    committed = first.save_until_full()
    abandon(first)
    use_up(small_disk)
    model, optimizers = build(rows=(20_000, 40))
    assert hf.open_run(url).restore(model=model, optimizer=optimizers).step == committed
    second = Trainer(url, grace_s=0.0)  # for which what the first one dropped is due
    with second.guard:
        assert second.guard.resume() == committed
        assert same(snapshot(second.model, second.optimizers), snapshot(model, optimizers))
        second.train()
        second.guard.save(wait=True)
    run = hf.open_run(url)
    assert [info.step for info in run.checkpoints()] == [committed + 1]
    assert run.verify() == []
    assert (url / "reserve+").stat().st_size == hf.Settings().reserve_bytes


def test_a_full_filesystem_is_pruned(small_disk: Path) -> None:
    url = small_disk / "run"
    trainer = Trainer(url, grace_s=3600.0, retention=hf.KeepAll())
    committed = trainer.save_until_full()
    abandon(trainer)
    use_up(small_disk)
    dropped, collected = hf.open_run(url).prune(hf.KeepLast(1), grace_s=0.0)
    assert len(dropped) == committed - 1 and collected.size_bytes > 2**20
    assert hf.open_run(url).verify() == []
