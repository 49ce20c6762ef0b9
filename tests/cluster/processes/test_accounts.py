"""What a job of real processes keeps accounts of: lost steps, the portion of lost samples, and its own record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import holdfast as hf
from holdfast.checkpoint.shards import ShardedRun
from holdfast.cluster.controller.resume import find_beginning
from holdfast.cluster.deaths import deaths_of
from holdfast.cluster.happenings import Committed, Ended, LostSamples, Replaced, Started
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe

BUDGET = hf.PLS(0.5, total_samples=100, samples_per_step=1)


def test_a_killed_server_is_metered_and_recorded(start_job: Callable[..., RunningJob]) -> None:
    job = start_job(strategy=hf.Partial(priority=None, budget=BUDGET), save=hf.EverySteps(20))
    job.run_to(20)
    job.until(lambda: any(each.step == 20 for each in job.of(Committed)))
    job.run_to(23)
    job.kill("server-1")
    job.wait_for(Replaced)
    job.run_to(25)
    lost = job.wait_for(LostSamples)
    assert (lost.member.index, lost.member.incarnation, lost.steps) == (1, 2, 3)
    assert lost.pls == pytest.approx(3 / 100 / 3)
    job.finish(36)

    run = hf.open_run(job.url)
    assert run.summary().pls == pytest.approx(0.01)
    (record,) = run.jobs()
    assert record.events == tuple(job.events)
    assert {Started, Ended} <= {type(each) for each in record.events}
    assert (record.servers, record.workers) == (3, 1)
    assert record.speeds[-1].step == 36
    (death,) = deaths_of(record.events)
    assert (death.lost_steps, death.by_spare) == (3, False)
    assert run.verify() == []
    stored = find_beginning(ShardedRun(job.url), Recipe().placement().plan, workers=1).pls
    assert stored is not None and stored["pls"] == pytest.approx(0.01)
    job.assert_nothing_is_left()
