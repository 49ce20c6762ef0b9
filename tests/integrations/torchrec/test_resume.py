"""Whatever the plan, the optimizer and the strategy: what a resume restores is what was saved, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast as hf
from tests.integrations.torchrec.joining import joined
from tests.integrations.torchrec.model import Plan
from tests.jobs.arrays import assert_same, kept
from tests.jobs.job import Job, Jobs
from tests.jobs.trainings import PHASES, STRATEGIES, die_in, kill_in_training, train_new, train_with_each_strategy

ONE = Plan(bags="tw rw tw rw tw tw rw", sequences="tw rw tw", world=1)
TWO = Plan(bags="tw rw cw rw tw dp rw", sequences="tw rw cw", world=2)
TURNED = Plan(bags="rw tw cw dp cw rw rw", sequences="cw tw rw", world=2, turn=1)
HALVES = Plan(bags="rw tw cw dp cw rw rw", sequences="rw tw cw", world=2)  # the columns split as in FOUR
DENSE = Plan(bags="dense_tw dense_rw cw dense_rw dp dp rw", sequences="tw rw cw", world=2)
ONLY_ROWS = Plan(bags="tw rw cw tw rw cw rw", sequences="tw rw cw", world=2)
FOUR = Plan(bags="tw rw cw twrw grid dp rw", sequences="tw rw cw", world=4)


def saved(job: Job, url: str, plan: Plan, optimizer: str, *, steps: int, every: int, **options: object) -> None:
    train_new(job, url, {"plan": plan, "optimizer": optimizer}, steps=steps, every=every, **options)


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


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise"])
def test_whatever_the_strategy_a_killed_job_goes_on_elsewhere(jobs: Jobs, tmp_path: Path, optimizer: str) -> None:
    job = jobs.get(4)
    urls = train_with_each_strategy(job, tmp_path, {"plan": FOUR, "optimizer": optimizer})
    before = joined(job.call("shadow", step=6))
    kill_in_training(job)
    job = jobs.get(2)
    for url, strategy in zip(urls, STRATEGIES, strict=True):
        job.call("build", plan=HALVES, optimizer=optimizer, seed=1)
        job.call("guard", url=url, strategy=strategy)
        assert job.call("resume") == [6, 6]
        assert_same(joined(job.call("held")), before)


def test_a_tracker_that_misses_a_row_is_found_out(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    job.whole = False  # its ranks are of no use afterwards
    job.call("watch_badly")
    saved(job, url, TWO, "adagrad", steps=6, every=2, strategy=hf.Consecutive())
    before = joined(job.call("shadow", step=6))
    job.call("build", plan=TWO, optimizer="adagrad", seed=1)
    job.call("guard", url=url)
    assert job.call("resume") == [6, 6]
    with pytest.raises(AssertionError, match="differs"):
        assert_same(joined(job.call("held")), before)


def test_rows_that_a_pipelined_trainer_looked_up_before_a_save_are_in_the_next_one(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    job.call("build", plan=ONLY_ROWS, optimizer="adagrad")
    job.call("guard", url=url, strategy=hf.Consecutive())
    job.call("resume")
    job.call("train_pipelined", steps=6, save_every=1)
    before = joined(job.call("shadow", step=6))
    job.call("build", plan=ONLY_ROWS, optimizer="adagrad", seed=1)
    job.call("guard", url=url)
    assert job.call("resume") == [6, 6]
    assert_same(joined(job.call("held")), before)


def test_a_lookup_without_a_backward_pass_marks_nothing(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, ONLY_ROWS, "adagrad", steps=2, every=1, strategy=hf.Consecutive())
    job.call("evaluate", step=77)
    assert job.call("save_blindly")[0] == 0


@pytest.mark.parametrize("where", PHASES)
def test_a_rank_may_die_in_any_phase(jobs: Jobs, tmp_path: Path, where: str) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, TWO, "adagrad", steps=4, every=2, strategy=hf.Consecutive())
    possible = die_in(job, url, {"plan": TWO, "optimizer": "adagrad"}, where)
    job = jobs.get(1)
    job.call("build", plan=ONE, optimizer="adagrad", seed=2)
    job.call("guard", url=url)
    (step,) = job.call("resume")
    assert step in possible
    assert_same(joined(job.call("held")), joined([kept(url, step, rank) for rank in range(2)]))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_tables_of_the_dense_kernel_are_saved_through_their_ordinary_optimizer(
    jobs: Jobs, tmp_path: Path, optimizer: str
) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, DENSE, optimizer, steps=4, every=1, strategy=hf.Consecutive())
    before, newest = joined(job.call("shadow", step=4)), hf.open_run(url).checkpoints()[-1]
    full = hf.open_run(url).checkpoints()[0]
    assert newest.rows_written < full.rows_written  # a delta
    for plan in (DENSE, TWO, ONE):
        job = jobs.get(plan.world)
        job.call("build", plan=plan, optimizer=optimizer, seed=1)
        job.call("guard", url=url)
        assert job.call("resume", step=4) == [4] * plan.world
        assert_same(joined(job.call("held")), before)
