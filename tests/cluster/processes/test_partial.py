"""Partial recovery of real processes: a server's death costs its own rows what was not saved, and nothing else.

What it costs is metered and recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import holdfast as hf
from holdfast.checkpoint.shards import ShardedRun
from holdfast.cluster.controller.resume import find_beginning
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.deaths import deaths_of
from holdfast.cluster.happenings import Ended, LostSamples, Recovered, Replaced, Started
from holdfast.cluster.saved import held_progress
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, arrays_of, assert_same, newest_saved, saved_at_end

BUDGET = hf.PLS(0.5, total_samples=100, samples_per_step=1)


def test_a_killed_server_costs_its_own_unsaved_rows_and_nothing_else(start_job: Callable[..., RunningJob]) -> None:
    recipe, twin = Recipe(), Twin(remembers=True)
    job = start_job(strategy=hf.Partial(priority=hf.MFU(r=0.25), budget=BUDGET), save=hf.EverySteps(20))
    job.run_to(20)
    job.saved(20)
    job.run_to(23)  # nothing was saved since the checkpoint
    assert die_and_come_back(job, twin, "server-1", step=23) == 3
    job.run_to(25)  # a priority save is due
    job.until(lambda: [each.step for each in hf.open_run(job.url).priority_saves()][-1:] == [25])
    job.run_to(28)
    assert die_and_come_back(job, twin, "server-2", step=28) == 8  # the priority save holds a few of its rows only
    job.finish(31)
    twin.run_to(31)
    assert_same(saved_at_end(job.url, recipe), twin.values())
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()
    check_accounts(job)


def check_accounts(job: RunningJob) -> None:
    """Both deaths, and what they cost since the checkpoint: of three servers each, of a hundred samples."""
    first, second = job.of(LostSamples)
    assert (first.member, first.steps) == (Member(Role.SERVER, 1, 2), 3)
    assert (second.member, second.steps) == (Member(Role.SERVER, 2, 2), 8)
    assert (first.pls, second.pls) == (pytest.approx(3 / 100 / 3), pytest.approx((3 + 8) / 100 / 3))
    assert [each.lost_samples for each in job.of(Recovered)] == [3, 8]  # by the same number as the portion
    run = hf.open_run(job.url)
    assert run.summary().pls == second.pls
    stored = find_beginning(ShardedRun(job.url), Recipe().placement().plan, workers=1).pls
    assert stored is not None and stored["pls"] == second.pls
    (record,) = run.jobs()
    assert record.events == tuple(job.events)
    assert {Started, Ended} <= {type(each) for each in record.events}
    assert (record.servers, record.workers, record.speeds[-1].step) == (3, 1, 31)
    lost = [(death.lost_steps, death.by_spare) for death in deaths_of(record.events)]
    assert lost == [(3, False), (8, False)]


def die_and_come_back(job: RunningJob, twin: Twin, name: str, *, step: int) -> int:
    """Kill a server that workers have left in peace; its twin loses what was not saved. Steps since the checkpoint."""
    twin.run_to(step)
    server = int(name.rpartition("-")[2])
    saved, loaded = newest_saved(job.url, twin.recipe, server)
    held = held_progress(loaded.newest[server])[0].pushed if loaded.newest else loaded.info.step
    versions = [twin.at(loaded.info.step), twin.at(held)]
    for number, values in enumerate(arrays_of(saved)[:-1]):
        rows = [values == each[f"server {server}, {number}"] for each in versions]
        assert np.all(np.logical_or.reduce(rows)), f"array {number} of server {server} holds rows of no save"
    deaths = len(job.of(Replaced))
    job.kill(name)
    job.wait_for(Replaced, deaths + 1)
    twin.lose(saved)
    return step - loaded.info.step
