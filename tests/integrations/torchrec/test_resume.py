"""Whatever the plan, the optimizer and the strategy: what a resume restores is what was saved, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from tests.integrations.torchrec.job import Job, Jobs, assert_same, joined
from tests.integrations.torchrec.model import Plan

ONE = Plan(bags="tw rw tw rw tw tw", sequences="tw rw tw", world=1)
TWO = Plan(bags="tw rw cw rw tw dp", sequences="tw rw cw", world=2)
TURNED = Plan(bags="rw tw cw dp cw rw", sequences="cw tw rw", world=2, turn=1)
FOUR = Plan(bags="tw rw cw twrw grid dp", sequences="tw rw cw", world=4)


def saved(job: Job, url: str, plan: Plan, optimizer: str, *, steps: int, every: int, **options: object) -> None:
    job.call("build", plan=plan, optimizer=optimizer)
    job.call("guard", url=url, **options)
    assert job.call("resume") == [0] * job.world
    job.call("train", steps=steps, save_every=every)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise"])
def test_a_resume_brings_back_every_row_and_slot(jobs: Jobs, tmp_path: Path, optimizer: str) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, TWO, optimizer, steps=6, every=2, strategy=hf.Consecutive())
    before = joined(job.call("shadow", step=6))
    job.call("train", steps=2)
    job.call("build", plan=TWO, optimizer=optimizer, seed=1)
    job.call("guard", url=url)
    assert job.call("resume", step=6) == [6, 6]
    assert_same(joined(job.call("held")), before)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_a_resume_takes_another_plan_and_another_number_of_ranks(jobs: Jobs, tmp_path: Path, optimizer: str) -> None:
    url = str(tmp_path / "run")
    saved(jobs.get(4), url, FOUR, optimizer, steps=6, every=2, strategy=hf.Consecutive())
    before, step = joined(jobs.get(4).call("shadow", step=6)), 6
    for plan in (TURNED, TWO, ONE, FOUR):
        job = jobs.get(plan.world)
        job.call("build", plan=plan, optimizer=optimizer, seed=step)
        job.call("guard", url=url, strategy=hf.Consecutive())
        assert job.call("resume") == [step] * plan.world
        assert_same(joined(job.call("held")), before)
        step += 4
        job.call("train", steps=4, save_every=2)
        before = joined(job.call("shadow", step=step))
