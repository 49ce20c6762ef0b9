"""However a model is divided, and into whatever it is restored: every row and slot is what was saved, bit for bit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from tests.jobs.arrays import assert_same, kept
from tests.jobs.job import Job, Jobs
from tests.jobs.trainings import PHASES, die_in, kill_in_training, resume, train_new, train_with_each_strategy


def saved(job: Job, url: str, how: str, optimizer: str = "adagrad", *, steps: int = 4, every: int = 2) -> None:
    train_new(job, url, {"how": how, "optimizer": optimizer}, steps=steps, every=every)


def resumed(job: Job, url: str, how: str, step: int, optimizer: str = "adagrad") -> None:
    resume(job, url, {"how": how, "optimizer": optimizer}, step)


ELSEWHERE = [("fsdp", 2), ("plain", 1), ("tp", 2), ("columns", 2), ("hsdp", 2), ("plain", 2)]  # for each strategy
CHAIN = [("fsdp", 2), ("tp", 2), ("plain", 1), ("columns", 2), ("fsdp", 1), ("plain", 2), ("fsdp", 2)]
LONG_CHAIN = [
    ("fsdp", 4),
    ("hsdp", 4),
    ("plain", 1),
    ("fsdp+tp", 4),
    ("tp", 2),
    ("fsdp+columns", 4),
    ("columns", 4),
    ("fsdp", 2),
    ("tp", 4),
    ("plain", 4),
    ("hsdp", 2),
    ("fsdp", 4),
]


@pytest.mark.parametrize(
    ("chain", "optimizer"),
    [
        pytest.param(CHAIN, "adagrad"),
        *(pytest.param(LONG_CHAIN, kind, marks=pytest.mark.slow) for kind in ("sgd", "adagrad", "adam")),
    ],
)
def test_a_run_goes_from_mesh_to_mesh(jobs: Jobs, tmp_path: Path, chain: list[tuple[str, int]], optimizer: str) -> None:
    url, (how, world), step = str(tmp_path / "run"), chain[0], 4
    saved(jobs.get(world), url, how, optimizer)
    before = jobs.get(world).call("shadow", step=step)[0]
    for how, world in chain[1:]:
        job = jobs.get(world)
        resumed(job, url, how, step, optimizer)
        assert_same(job.call("held")[0], before)
        step += 4
        job.call("train", steps=4, save_every=2)
        before = job.call("shadow", step=step)[0]


def test_a_rank_that_holds_no_values_of_a_table_trains_on_after_a_resume(jobs: Jobs, tmp_path: Path) -> None:
    """Adam makes its slots at the first step: after a resume they come from the checkpoint, or from nowhere."""
    job, url = jobs.get(4), str(tmp_path / "run")
    saved(job, url, "columns", "adam", steps=2)  # the last rank has none of a table's six values
    before = job.call("shadow", step=2)[0]
    resumed(job, url, "columns", 2, "adam")
    assert_same(job.call("held")[0], before)
    job.call("train", steps=2, save_every=2)
    before = job.call("shadow", step=4)[0]
    resumed(jobs.get(2), url, "fsdp", 4, "adam")
    assert_same(jobs.get(2).call("held")[0], before)


@pytest.mark.parametrize(
    ("shape", "mesh", "placements"),
    [
        ((7, 3), (2,), [Shard(0)]),
        ((1, 3), (2,), [Shard(0)]),
        ((4, 5), (2,), [Shard(1)]),
        ((5,), (2, 1), [Replicate(), Shard(0)]),
        ((5,), (2, 1), [_StridedShard(0, split_factor=1), Shard(0)]),
        *(
            pytest.param(shape, (2, 2), placements, marks=pytest.mark.slow)
            for shape in [(11, 6), (3, 2), (8, 5), (1, 1)]
            for placements in (
                [Shard(0), Shard(0)],
                [Shard(0), Shard(1)],
                [Shard(1), Replicate()],
                [_StridedShard(0, split_factor=2), Shard(0)],
                [_StridedShard(1, split_factor=2), Shard(1)],
            )
        ),
    ],
)
def test_a_ranks_part_of_a_tensor_is_told_as_torch_divides_it(
    jobs: Jobs, shape: tuple[int, ...], mesh: tuple[int, ...], placements: list[Placement]
) -> None:
    for held, told in jobs.get(math.prod(mesh)).call("boxes", shape=shape, mesh=mesh, placements=placements):
        assert held.shape == told.shape and held.tolist() == told.tolist()


def test_after_an_evaluation_fsdp_holds_other_parameters_and_the_sharded_ones_are_saved(
    jobs: Jobs, tmp_path: Path
) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, "fsdp", steps=2, every=0)
    before = job.call("held")[0]
    assert job.call("evaluate") == ["Parameter"] * 2
    job.call("save_blindly")
    resumed(job, url, "fsdp", 2)
    assert_same(job.call("held")[0], before)


def test_ranks_end_together_when_one_is_told_to_and_no_sample_is_read_twice(jobs: Jobs, tmp_path: Path) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    job.call("build", how="fsdp")
    job.call("guard_data", url=url, samples=96)
    assert job.call("resume") == [0, 0]
    first = job.call("train_on_data", ends_at=5)
    step = len(first[0]) // 2
    assert 5 <= step < 24 and len(first[1]) == len(first[0])  # ranks ask each other every few steps
    job.call("build", how="fsdp", seed=1)
    job.call("guard_data", url=url, samples=96)
    assert job.call("resume") == [step, step]
    second = job.call("train_on_data")
    assert sorted(sample for read in first + second for sample in read) == list(range(96))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fsdp", "hsdp", "tp", "columns", "fsdp+tp", "fsdp+columns"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_whatever_the_strategy_a_killed_job_goes_on_elsewhere(
    jobs: Jobs, tmp_path: Path, how: str, optimizer: str
) -> None:
    job = jobs.get(4)
    urls = train_with_each_strategy(job, tmp_path, {"how": how, "optimizer": optimizer})
    before = job.call("shadow", step=6)[0]
    kill_in_training(job)
    for url, (how, world) in zip(urls, ELSEWHERE, strict=True):
        resumed(jobs.get(world), url, how, 6, optimizer)
        assert_same(jobs.get(world).call("held")[0], before)


@pytest.mark.parametrize(
    "where",
    [
        PHASES[0],
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (*PHASES[1:], "holdfast.checkpoint.ranks.tiling.Tiling.agree")
        ),
    ],
)
def test_a_rank_may_die_in_any_phase(jobs: Jobs, tmp_path: Path, where: str) -> None:
    job, url = jobs.get(2), str(tmp_path / "run")
    saved(job, url, "fsdp")
    possible = die_in(job, url, {"how": "fsdp"}, where)
    job = jobs.get(1)
    job.call("build", how="plain", seed=2)
    job.call("guard", url=url)
    (step,) = job.call("resume")
    assert step in possible
    assert_same(job.call("held")[0], kept(url, step, 0))
