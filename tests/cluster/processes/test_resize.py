"""Workers join and leave a job of real processes: nothing is lost, nothing is counted twice."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
import torch

import holdfast as hf
from holdfast.cluster.happenings import Died, Resized, ResizeFailed, WentBack
from holdfast.errors import ConfigurationError, RunError
from tests.cluster.processes import counting
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import assert_same, saved_at_end


def resize(job: RunningJob, workers: int) -> Resized:
    """Change the number of workers, and wait until all are at work."""
    known = len(job.of(Resized))
    job.cluster.resize(workers=workers)
    return job.wait_for(Resized, known + 1)


def test_every_sample_counts_once_whoever_joins_and_leaves(start_job: Callable[..., RunningJob]) -> None:
    job = start_job(**counting.JOB)
    job.run_to(3)
    servers = [job.process(f"server-{index}").pid for index in range(2)]
    with pytest.raises(ConfigurationError, match="workers must be a whole number of at least 1"):
        job.cluster.resize(workers=0)
    job.cluster.resize(workers=1)  # as many as there are
    job.cluster.resize(workers=3)
    with pytest.raises(RunError, match="a change to 3 workers is under way"):
        job.cluster.resize(workers=2)
    told = job.wait_for(Resized)
    assert (told.before, told.workers) == (1, 3)
    job.gate.open(9, step_s=0.02)
    job.until(lambda: job.gate.at(2) >= 2)  # they are at work while it changes again
    resize(job, 2)
    taken = counting.times_taken(job.url)
    assert taken.le(1).all() and 8 <= taken[2].sum() < counting.SAMPLES
    job.run_to(10)
    resize(job, 3)
    assert [job.process(f"server-{index}").pid for index in range(2)] == servers  # processes stay
    assert torch.equal(counting.times_taken(job.url)[2], taken[2])
    job.finish(2 * counting.STEPS)  # the third goes on where it left
    assert torch.equal(counting.times_taken(job.url), torch.ones(counting.PLACES, counting.SAMPLES))
    assert not (job.of(Died) or job.of(WentBack))
    assert hf.open_run(job.url).jobs()[0].workers == 3
    job.assert_nothing_is_left()
    with pytest.raises(RunError, match="the job has ended"):
        job.cluster.resize(workers=3)


@pytest.mark.slow
def test_a_change_comes_to_what_a_stop_and_a_resume_come_to_bit_for_bit(start_job: Callable[..., RunningJob]) -> None:
    settings = {**counting.JOB, "train": counting.train_counting_in_step, "synchronous": True}
    job = start_job("stopped", **settings)
    job.finish(3)
    job = start_job("stopped", **settings, workers=3)
    job.finish(8)
    stopped = start_job("stopped", **settings, workers=2)
    stopped.finish(100)

    job = start_job(**settings)
    job.run_to(3)
    resize(job, 3)
    job.run_to(8)
    job.run_to(8, worker=2)
    resize(job, 2)
    job.finish(100)
    assert_same(saved_at_end(job.url, counting.RECIPE), saved_at_end(stopped.url, counting.RECIPE))
    # The second worker took as many steps as its data have, behind those of the first: so it saw each sample once.
    assert hf.open_run(job.url).checkpoints()[-1].step == 3 + counting.STEPS
    taken = counting.times_taken(job.url)
    assert taken[:2].gt(0).all() and taken[2].gt(0).sum() == 5 * counting.BATCH


@pytest.mark.slow
def test_the_number_of_workers_stays_where_its_save_fails(start_job: Callable[..., RunningJob]) -> None:
    job = start_job(**counting.JOB, strategy=hf.Full(), settings=hf.Settings(retry_s=0.5, reserve_bytes=0))
    job.run_to(3)
    agents = [job.agent(server) for server in range(2)]
    for agent in agents:
        agent.rlimit(psutil.RLIMIT_FSIZE, (100, psutil.RLIM_INFINITY))
    job.cluster.resize(workers=2)
    assert "StorageFull" in job.wait_for(ResizeFailed).problem
    for agent in agents:
        agent.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    job.run_to(5)  # it trains on
    resize(job, 2)
    job.finish(100)
    assert counting.times_taken(job.url)[:2].eq(1).all() and not job.of(Died)


def test_nothing_can_be_changed_before_a_job_runs() -> None:
    with pytest.raises(RunError, match="no job is running"):
        hf.Cluster("unused", **counting.JOB, workers=1).resize(workers=2)
