"""Synchronous training of real processes comes to what one process comes to with the same kernels, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.cluster.happenings import Replaced
from tests.cluster.processes import dlrm
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Twin, assert_same, saved_at_end


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2, 5])
def test_the_number_of_servers_changes_nothing(servers: int, start_job: Callable[..., RunningJob]) -> None:
    one = dlrm.recipe(servers=1)
    twin = Twin(one)
    job = start_job(servers=servers, save=hf.EverySteps(7), **dlrm.JOB)
    job.finish(40)
    twin.run_to(40)
    assert_same(saved_at_end(job.url, one), twin.values())


def test_dlrm_on_three_servers_with_a_worker_that_is_killed_three_times_is_that_of_a_single_process(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(servers=3, workers=2, **dlrm.JOB)
    job.run_to(4)
    job.run_to(4, worker=1)
    job.kill("worker-1")  # while nothing is on its way
    job.wait_for(Replaced)
    job.gate.open(5, worker=0)
    job.until(lambda: (held := job.gate.held(1)) is not None and held["step"] == 4)
    job.kill("worker-1")  # while servers hold the other's push of the next step
    job.wait_for(Replaced, 2)
    job.gate.open(60, step_s=0.02)
    job.until(lambda: job.gate.at(1) > 8)
    job.kill("worker-1")  # somewhere in a step
    job.wait_for(Replaced, 3)
    job.finish(60)
    twin = Twin(dlrm.recipe(servers=1, workers=2))
    twin.run_to(60)
    assert_same(saved_at_end(job.url, twin.recipe), twin.values())
    job.assert_nothing_is_left()
