"""What is wrong with a job is said once, where its user sees it; nothing hangs, and nothing is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import psutil
import pytest

import holdfast as hf
from holdfast.cluster.happenings import Committed, Died, Ended, SaveFailed
from holdfast.errors import ModelMismatch
from tests.cluster.processes import bad_programs
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, saved_at_end

Start = Callable[..., RunningJob]


def test_a_model_that_cannot_be_built_fails_before_any_process_starts(start_job: Start) -> None:
    job = start_job(model=bad_programs.build_nothing)
    with pytest.raises(ValueError, match="the vocabulary is not here"):
        job.end()
    assert not job.events and not job.left()


def test_a_model_that_cannot_be_built_in_a_worker_ends_the_job(
    start_job: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(bad_programs.CONTROLLER, str(os.getpid()))
    job = start_job(model=bad_programs.build_at_the_controller_only, servers=1)
    with pytest.raises(hf.JobFailed, match="the vocabulary is not on this machine"):
        job.end()
    assert not job.of(Died) and not job.left()


def test_a_train_that_calls_sys_exit_ends_a_job_that_says_so(start_job: Start) -> None:
    job = start_job(train=bad_programs.train_until_exit, servers=1, limit=100)
    with pytest.raises(hf.JobFailed, match=r"SystemExit.*\n.*exit\('the learning rate is missing'\) does not"):
        job.end()
    assert not job.of(Died) and len(job.of(Ended)) == 1 and not job.left()


def test_bad_ids_end_a_job_that_says_which_and_leave_what_was_saved(start_job: Start) -> None:
    job = start_job(train=bad_programs.train_badly, on_nan="push", servers=2, save=hf.EverySteps(3))
    job.run_to(3)
    job.saved(3)
    job.gate.open(100)
    with pytest.raises(hf.JobFailed, match=r"worker 0 .*\n(.*\n)*.*id 641 is outside table emb.0.weight, .* 600 rows"):
        job.end()
    assert hf.open_run(job.url).checkpoints()[-1].step in (3, 6)
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()


@pytest.mark.slow
def test_a_gradient_that_is_not_a_number_ends_a_job_that_says_of_what(start_job: Start) -> None:
    job = start_job(train=bad_programs.train_badly, servers=1, limit=100)
    with pytest.raises(hf.JobFailed, match=r"NotFinite: the gradient of .*top.0.weight.* is NaN"):
        job.end()
    job.look()
    assert not job.left()


@pytest.mark.slow
def test_bad_ids_and_gradients_can_be_left_out(start_job: Start) -> None:
    job = start_job(train=bad_programs.train_badly, on_nan="skip", on_bad_ids="skip", servers=2, limit=100)
    job.end()
    assert hf.open_run(job.url).checkpoints()[-1].step == 12 - 3
    assert all(np.isfinite(values).all() for values in saved_at_end(job.url, Recipe(servers=2)).values())


@pytest.mark.slow
@pytest.mark.parametrize("parity", [None, hf.Parity(data=2, domain="process")], ids=["bare", "protected"])
def test_more_servers_than_rows_and_a_table_without_rows(start_job: Start, parity: hf.Parity | None) -> None:
    """Nor are they a multiple of the three that share a stripe."""
    recipe = Recipe(model=bad_programs.build_tiny, servers=4, tables=hf.tables(min_bytes=0))
    job = start_job(model=bad_programs.build_tiny, servers=4, tables=hf.tables(min_bytes=0), parity=parity)
    job.finish(5)
    twin = Twin(recipe)
    twin.run_to(5)
    assert_same(saved_at_end(job.url, recipe), twin.values())
    assert hf.open_run(job.url).verify() == []


@pytest.mark.slow
def test_a_job_without_large_tables_goes_on_as_one_with_other_workers_and_refuses_another_model(
    start_job: Start, caplog: pytest.LogCaptureFixture
) -> None:
    small = hf.tables(min_bytes=1 << 30)
    recipe = Recipe(servers=2, tables=small)
    job = start_job(servers=2, tables=small)
    job.finish(5)
    twin = Twin(recipe)
    twin.run_to(5)
    assert_same(saved_at_end(job.url, recipe), twin.values())

    job = start_job(servers=1, workers=2)  # and with tables on servers
    job.finish(8)
    assert "has had 1 workers, and goes on with 2" in caplog.text
    assert hf.open_run(job.url).checkpoints()[-1].step == 16

    job = start_job(servers=1, model=bad_programs.build_tiny)
    with pytest.raises(hf.JobFailed, match=ModelMismatch.__name__):
        job.end()
    assert not job.of(Died)


@pytest.mark.slow
def test_a_full_store_and_a_slow_worker_do_not_stop_a_training(start_job: Start) -> None:
    job = start_job(
        train=bad_programs.train_unevenly,
        servers=2,
        workers=2,
        limit=100_000,
        save=hf.EverySteps(5),
        strategy=hf.Full(),
        settings=hf.Settings(retry_s=0.5, reserve_bytes=0),
    )
    job.wait_for(Committed)
    agents = [job.agent(server) for server in range(2)]
    for agent in agents:
        agent.rlimit(psutil.RLIMIT_FSIZE, (100, psutil.RLIM_INFINITY))
    failed = job.wait_for(SaveFailed)
    assert "StorageFull" in failed.problem
    committed, step = len(job.of(Committed)), job.gate.at()
    job.until(lambda: job.gate.at() > step + 5)  # it trains on
    for agent in agents:
        agent.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    job.wait_for(Committed, committed + 1)
    assert job.gate.at(0) > 3 * job.gate.at(1)  # nobody waits for the slow one
    job.finish(job.gate.at(0))
    assert not job.of(Died)
