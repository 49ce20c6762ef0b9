"""The death of server 0, which leads commits: saves that were under way keep nobody waiting."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.cluster.happenings import Committed, Replaced
from tests.cluster.processes.jobs import RunningJob


@pytest.mark.slow
def test_a_priority_save_that_a_dead_server_had_no_part_in_does_not_block_the_others(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(strategy=hf.Partial(priority=hf.MFU(r=0.25)), save=hf.EverySteps(40), ahead=0)
    job.run_to(5)
    job.until(lambda: job.of(Committed))
    agent = job.agent(0)
    agent.suspend()
    try:
        job.run_to(15)  # a priority save is due
        job.until(lambda: len(list((job.url / "data").iterdir())) == 2)
        job.kill("server-0")
        job.wait_for(Replaced)
        job.run_to(45)
        job.until(lambda: any(each.step >= 40 for each in job.of(Committed)))
    finally:
        agent.kill()
    job.finish(50)
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()
