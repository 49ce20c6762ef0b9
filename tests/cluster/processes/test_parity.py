"""What parity cannot give comes from saves, or sends everyone back; what a job cannot have is refused."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cluster.happenings import Died, LostSamples, Recovered, Redundant, WentBack
from holdfast.errors import ConfigurationError
from tests.cluster.processes import programs
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.storm import PARITY
from tests.cluster.processes.twin import Recipe, Twin, assert_same, saved_at_end

TWO_PARITIES = hf.Parity(data=2, parity=2, domain="process", rebuild="fast")


def lose_two_at_a_time(job: RunningJob) -> None:
    """Save at step 10, lose two servers at step 13, train to step 30."""
    job.wait_for(Redundant)
    job.run_to(10)
    job.saved(10)
    job.run_to(13)
    server = job.kill("server-1", signal.SIGSTOP)
    job.kill("server-2")
    server.kill()
    job.wait_for(Recovered, 2)
    job.wait_for(Redundant, 2)
    job.finish(30)


def strike_pairs(job: RunningJob, pairs: list[tuple[str, str]], *, at_once: bool) -> None:
    """Kill two at a time, or the second when the first one is known to be dead, while training goes on."""
    for number, victims in enumerate(pairs):
        job.wait_for(Redundant, number + 1)
        job.gate.open(1000, step_s=0.02)
        at = job.gate.at()
        job.until(lambda at=at: job.gate.at() > at + 3)  # type: ignore[misc]
        job.kill(victims[0])
        if not at_once:
            job.wait_for(Died, 2 * number + 1)
        job.kill(victims[1])
        job.wait_for(Recovered, 2 * number + 2)
    job.wait_for(Redundant, len(pairs) + 1)


def assert_as_undisturbed(job: RunningJob, recipe: Recipe, steps: int) -> None:
    twin = Twin(recipe)
    twin.run_to(steps)
    assert_same(saved_at_end(job.url, recipe), twin.values())
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()


def test_two_servers_that_die_at_once_change_nothing_where_rows_have_two_parities(
    start_job: Callable[..., RunningJob],
) -> None:
    job = start_job(parity=TWO_PARITIES, servers=4, spares=2, synchronous=True)
    strike_pairs(job, [("server-1", "server-2")], at_once=True)
    steps = job.gate.at() + 5
    job.finish(steps)
    assert [each.rung for each in job.of(Recovered)] == ["parity", "parity"]
    assert not job.of(LostSamples) and not job.of(WentBack)
    assert_as_undisturbed(job, Recipe(), steps)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "during recovery"])
def test_many_servers_that_die_two_at_a_time_change_nothing_where_rows_have_two_parities(
    start_job: Callable[..., RunningJob], at_once: bool
) -> None:
    job = start_job(parity=TWO_PARITIES, servers=4, spares=2, synchronous=True)
    pairs = [("server-1", "server-2"), ("server-0", "server-3"), ("server-2", "server-0")]
    strike_pairs(job, pairs, at_once=at_once)
    steps = job.gate.at() + 5
    job.finish(steps)
    assert {each.rung for each in job.of(Recovered)} == {"parity"}
    assert_as_undisturbed(job, Recipe(), steps)


def test_rows_that_parity_cannot_give_come_from_saves(start_job: Callable[..., RunningJob]) -> None:
    job = start_job(parity=PARITY, save=hf.EverySteps(10))
    lose_two_at_a_time(job)
    assert {each.rung for each in job.of(Recovered)} == {"partial"}
    assert sum(each.saved_rows for each in job.of(Recovered)) > 0
    assert {each.steps for each in job.of(LostSamples)} == {3}
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()


@pytest.mark.slow
def test_everyone_goes_back_where_rows_of_one_time_are_wanted(start_job: Callable[..., RunningJob]) -> None:
    job = start_job(parity=PARITY, spares=2, save=hf.EverySteps(10), strategy=hf.Full())
    lose_two_at_a_time(job)
    assert {each.rung for each in job.of(Recovered)} == {"full"}
    assert [each.lost_steps for each in job.of(WentBack)] == [3]
    assert_as_undisturbed(job, Recipe(), 30)


def test_parities_that_a_job_cannot_have_are_refused_before_anything_is_started(tmp_path: Path) -> None:
    job = dict(model=programs.build_net, train=programs.train_gated, workers=1, optimizer=hf.SGD(0.1))
    with pytest.raises(ConfigurationError, match="needs 5 servers, and this job has 3: start more, or pass data=2"):
        hf.Cluster(tmp_path, servers=3, parity=hf.Parity(), **job)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs 2 servers or more, and this job has 1"):
        hf.Cluster(tmp_path, servers=1, parity=hf.Parity(data=1), **job)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
