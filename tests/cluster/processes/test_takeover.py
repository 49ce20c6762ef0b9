"""Processes that nobody counts on any more: another job took their run over, or they were stopped and replaced."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import holdfast as hf
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.happenings import Died, Replaced, Started
from holdfast.cluster.launch.base import Launcher, Tenant
from holdfast.cluster.launch.local import LocalLauncher, LocalProcesses
from tests.cluster.processes import lossy
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.script import ScriptJob


@pytest.mark.slow
def test_the_older_of_two_jobs_on_one_run_ends_and_says_why(start_job: Callable[..., RunningJob]) -> None:
    older = start_job(servers=2, save=hf.EverySteps(5), settings=hf.Settings(takeover_s=1))
    older.run_to(5)
    older.saved(5)
    newer = ScriptJob(older.url, older.gate.folder.parent / "other", "settings=hf.Settings(takeover_s=1)", limit=100)
    try:
        newer.until_at(6)  # both listen on ports of their own
        older.gate.open(10)
        with pytest.raises(hf.JobFailed, match="TakenOver"):
            older.end()
        assert newer.end(signal.SIGTERM) == hf.Terminated.EXIT_CODE
        newer.assert_nothing_is_left()
    finally:
        newer.abandon()
    older.assert_nothing_is_left()
    assert hf.open_run(older.url).verify() == []


def test_a_job_that_one_process_deserts_is_resumed_at_once_although_others_stayed(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(save=hf.EverySteps(5))
    job.run_to(5)
    job.saved(5)
    job.run_to(7)
    job.cluster._beats.forget(Member(Role.SERVER, 1, 1))  # so it ends by itself, and nobody else knows why
    job.wait_for(Started, 2)
    job.finish(9)
    assert hf.open_run(job.url).checkpoints()[-1].step == 9
    job.assert_nothing_is_left()


def test_a_worker_that_lost_the_controller_for_a_while_is_replaced(start_job: Callable[..., RunningJob]) -> None:
    job = start_job(servers=2, silence_s=2.0, train=lossy.train_and_lose_the_controller, limit=lossy.LOST_AT)
    assert job.wait_for(Died).member == Member(Role.WORKER, 0, 1)
    job.wait_for(Replaced)
    job.finish(lossy.LOST_AT + 3)
    assert hf.open_run(job.url).checkpoints()[-1].step == lossy.LOST_AT + 3
    job.assert_nothing_is_left()


class OutOfReach(LocalLauncher):
    """Kills nobody before the end, as if a machine could not be reached."""

    def kill(self, tenant: Tenant) -> None:
        pass


class Elsewhere(LocalProcesses):
    def open(self, *, servers: int, workers: int, spares: int = 0) -> Launcher:
        return OutOfReach(self)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["server-1", "worker-0"])
def test_a_stopped_process_that_was_replaced_ends_itself_when_it_wakes(
    name: str, start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    job = start_job(servers=2, silence_s=4.0, launcher=Elsewhere(worker_threads=1))
    job.run_to(3)
    stopped: psutil.Process = job.kill(name, signal.SIGSTOP)
    job.wait_for(Replaced)
    assert stopped.status() == psutil.STATUS_STOPPED
    stopped.resume()
    job.until(lambda: not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE)
    job.finish(6)
    assert hf.open_run(job.url).checkpoints()[-1].step == 6
    job.assert_nothing_is_left()
