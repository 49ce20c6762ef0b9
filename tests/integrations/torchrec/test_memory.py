"""A restore into another plan needs memory for a few chunks beyond what the tables take, however large these are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import holdfast as hf
from tests.integrations.torchrec.model import BAGS, Plan
from tests.jobs.job import Job, Jobs
from tests.jobs.rank import SETTINGS
from tests.jobs.trainings import train_new

CHUNK_BYTES = 2**19
BOUND_BYTES = 16 * CHUNK_BYTES
LARGE = {**BAGS, "b0": 1_500_000}  # with Adagrad's sums 92 MiB


def large_table(kind: str, world: int) -> dict[str, object]:
    """A model whose first table is large, and divided like this."""
    others = " ".join(["tw"] * (len(BAGS) - 1))
    plan = Plan(bags=f"{kind} {others}", sequences="tw tw tw", world=world)
    return {"plan": plan, "optimizer": "adagrad", "bags": LARGE}


def totals(job: Job) -> Counter[str]:
    """The bits of each table and its slot, over all ranks."""
    return sum((Counter(own) for own in job.call("totals")), Counter())


def opened(job: Job, url: str, how: dict[str, object]) -> None:
    job.call("build", **how, seed=7)
    job.call("guard", url=url, strategy=hf.Consecutive())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("rw", 2), ("cw", 2)),
        (("cw", 2), ("rw", 2)),
        (("rw", 2), ("tw", 1)),
        (("tw", 1), ("cw", 2)),
    ],
    ids=lambda each: f"{each[0]}{each[1]}",
)
def test_a_restore_into_another_plan_takes_a_few_chunks_of_memory(
    jobs: Jobs, tmp_path: Path, before: tuple[str, int], after: tuple[str, int]
) -> None:
    job, url = jobs.get(before[1]), str(tmp_path / "run")
    settings = replace(SETTINGS, buffer_bytes=16 * CHUNK_BYTES, frame_bytes=CHUNK_BYTES)
    train_new(job, url, large_table(*before), steps=1, every=0, settings=settings)
    job.call("save_blindly")
    job.call("train", steps=1)
    job.call("save_blindly")
    saved = totals(job)
    job.call("close")

    job, how = jobs.get(after[1]), large_table(*after)
    opened(job, url, how)
    job.call("resume")  # the first restore of a process loads code: that takes memory too
    job.call("close")
    opened(job, url, how)
    for step, extra_bytes, table_bytes in job.call("resume_counting"):
        assert step == 2
        assert table_bytes > 5 * BOUND_BYTES
        assert extra_bytes < BOUND_BYTES
    restored = totals(job)
    assert all(restored[name] == saved[name] for name in saved if "embedding" in name)
    job.call("close")
