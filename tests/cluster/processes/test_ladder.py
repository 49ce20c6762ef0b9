"""Jobs that climb down: which rung makes up for a death, and what each costs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.cluster.happenings import LadderChosen, Recovered, Redundant, WentBack
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, saved_at_end

Start = Callable[..., RunningJob]
PARITY = hf.Parity(data=2, parity=1, domain="process", rebuild="fast")


def lose_two(job: RunningJob, one: str, other: str) -> None:
    """At a time."""
    stopped = job.kill(one, signal.SIGSTOP)
    job.kill(other)
    stopped.kill()


@pytest.mark.slow
def test_one_job_takes_every_rung_and_says_what_each_cost(start_job: Start) -> None:
    """Two of three servers that lose 4 steps of 40 are within the budget; another 5 are not."""
    budget = hf.PLS(0.1, total_samples=40, samples_per_step=1)
    job = start_job(parity=PARITY, spares=2, save=hf.EverySteps(10), strategy=hf.Partial(priority=None, budget=budget))
    job.wait_for(Redundant)
    job.run_to(10)
    job.saved(10)
    job.run_to(12)
    job.kill("server-1")
    job.wait_for(Redundant, 2)
    job.run_to(14)
    lose_two(job, "server-1", "server-2")
    job.wait_for(Recovered, 3)
    job.wait_for(Redundant, 3)
    job.run_to(20)
    job.saved(20)
    job.run_to(25)
    lose_two(job, "server-0", "server-2")
    job.wait_for(Recovered, 5)
    job.finish(30)
    found = job.of(Recovered)
    assert [each.rung for each in found] == ["parity", "partial", "partial", "full", "full"]
    assert [each.lost_steps for each in found] == [0, 4, 4, 5, 5]
    assert [each.lost_pls for each in found] == pytest.approx([0, 1 / 30, 1 / 30, 0, 0])
    assert [each.lost_steps for each in job.of(WentBack)] == [5]
    assert [each.rung for each in hf.open_run(job.url).jobs()[-1].deaths] == [each.rung for each in found]
    assert hf.open_run(job.url).verify() == []
    job.assert_nothing_is_left()


@pytest.mark.slow
def test_parity_that_is_switched_off_and_on_at_a_resume_changes_nothing(start_job: Start) -> None:
    """The planner's choice first, then none, then another."""
    chosen = []
    for step, options in ((5, {"ladder": "auto"}), (8, {}), (11, {"parity": PARITY})):
        job = start_job(strategy=hf.Full(), save=hf.EverySteps(5), **options)
        job.finish(step)
        chosen.append(job.of(LadderChosen)[0].rungs)
        twin = Twin(Recipe())
        twin.run_to(step)
        assert_same(saved_at_end(job.url, Recipe()), twin.values())
    assert chosen == ["parity (2 + 1) → full", "full", "parity (2 + 1) → full"]


def test_a_ladder_and_other_arguments_that_contradict_it_are_refused_by_both_names(tmp_path: Path) -> None:
    job = dict(model=len, train=len, servers=5, workers=1, optimizer=hf.SGD(0.1))
    for given, complaint in (
        (dict(ladder="parity"), r"ladder='parity' is not valid; pass \"auto\", or a Ladder"),
        (dict(ladder=hf.Ladder(), parity=hf.Parity()), r"ladder=Ladder\(.* and parity=Parity\(.* contradict"),
        (dict(ladder=hf.Ladder(), strategy=hf.Partial()), r"ladder=Ladder\(.* and strategy=Partial\(.* contradict"),
        (dict(ladder=hf.Ladder(partial=True), synchronous=True), r"Ladder\(partial=True\) and synchronous=True"),
        (dict(strategy=hf.Partial(), synchronous=True), r"strategy=Partial\(\.\.\.\) and synchronous=True"),
        (dict(synchronous="yes"), "Cluster: synchronous must be True or False, got 'yes'"),
        (dict(spares=True), "Cluster: spares must be a whole number of at least 0, got True"),
        (dict(ladder=hf.Ladder(parity=hf.Parity(data=5))), "needs 6 servers, and this job has 5"),
    ):
        with pytest.raises(hf.HoldfastError, match=complaint):
            hf.Cluster(tmp_path, **{**job, **given})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
