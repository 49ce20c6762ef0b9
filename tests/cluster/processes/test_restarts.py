"""Processes that cannot be started, or die wherever they are begun again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cluster.controller import streaks
from holdfast.cluster.controller.crew import FIRST_SPARE
from holdfast.cluster.core.members import Member
from holdfast.cluster.happenings import Died, Ended, Replaced, Resized, SpareFailed, Started
from tests.cluster.processes import bad_programs
from tests.cluster.processes.jobs import RunningJob

Start = Callable[..., RunningJob]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Where processes print. While the folder is missing, none can be started."""
    return tmp_path / "logs"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before a process is started again."""
    monkeypatch.setattr(streaks, "_PAUSES_S", (0.0,))


def known(job: RunningJob) -> list[Member]:
    """Whom the controller can send to."""
    return sorted(job.cluster._endpoint.addresses, key=str)


def start_with(start_job: Start, logs: Path, **options: object) -> RunningJob:
    launcher = hf.LocalProcesses(worker_threads=1, logs=logs)
    job = start_job(servers=2, launcher=launcher, **options)
    job.wait_for(Started)
    return job


def test_the_controller_knows_nobody_any_more_who_died_or_became_somebody_else(start_job: Start) -> None:
    job = start_job(servers=2, spares=1, strategy=hf.Full())
    for death in (1, 2):
        job.run_to(2 * death)
        job.until(job.spare)
        job.kill("server-0")
        job.wait_for(Replaced, death)
    job.cluster.resize(workers=2)
    job.gate.open(10)
    job.wait_for(Resized)
    job.until(job.spare)
    places = ["server 0", "server 1", f"server {FIRST_SPARE}", "worker 0", "worker 1"]
    job.until(lambda: [f"{each.role.value} {each.index}" for each in known(job)] == places)
    job.finish(20)


def test_a_spare_that_cannot_be_started_is_told_of_once_and_started_later(start_job: Start, logs: Path) -> None:
    job = start_with(start_job, logs, spares=1)
    job.until(job.spare)
    spare = job.spare()
    assert spare is not None
    shutil.rmtree(logs)
    job.hit(spare)
    assert job.wait_for(SpareFailed).problem == "killed by SIGKILL"
    job.run_to(5)
    logs.mkdir()
    job.until(job.spare)
    job.finish(10)
    assert len(job.of(SpareFailed)) == 1 and not job.of(Died)
    assert hf.open_run(job.url).checkpoints()[-1].step == 10
    job.assert_nothing_is_left()


def test_a_worker_that_cannot_be_started_is_started_later(start_job: Start, logs: Path) -> None:
    job = start_with(start_job, logs)
    job.run_to(5)
    shutil.rmtree(logs)
    job.kill("worker-0")
    assert "could not be started" in job.wait_for(Died, 2).how
    logs.mkdir()
    job.wait_for(Replaced)
    job.finish(10)
    assert hf.open_run(job.url).checkpoints()[-1].step == 10


def test_a_job_ends_whose_worker_cannot_be_started_again_and_again(start_job: Start, logs: Path, at_once: None) -> None:
    job = start_with(start_job, logs)
    job.run_to(5)
    shutil.rmtree(logs)
    job.kill("worker-0")
    with pytest.raises(hf.JobFailed, match=r"worker 0 died 5 times in a row .* could not be started"):
        job.end()
    (ended,) = job.of(Ended)
    assert "could not be started" in ended.problem
    job.assert_nothing_is_left()


def test_a_job_ends_whose_worker_is_killed_in_every_life(start_job: Start, at_once: None) -> None:
    job = start_job(servers=1, workers=1, train=bad_programs.train_until_killed)
    with pytest.raises(hf.JobFailed, match=r"worker 0 died 5 times in a row .* The last time: killed by SIGKILL"):
        job.end()
    assert len(job.of(Died)) == 5 and len(job.of(Ended)) == 1
    assert not job.left()
