"""What tests do with a job, whoever divides its model: train and save, go on, be killed. ``how`` is what is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast as hf
from tests.jobs.job import Job

STRATEGIES = [
    hf.Full(),
    hf.OneShot(),
    hf.Consecutive(),
    hf.Intermittent(),
    hf.Grid(),
    hf.Partial(priority=hf.MFU(r=0.5)),
]
PHASES = [
    "holdfast.checkpoint.snapshot.captured.Captured.copy_into",
    "holdfast.checkpoint.trainer.handover.Handover.copy",
    "holdfast.checkpoint.trainer.handover.Handover.seal",
    "holdfast.checkpoint.write.part_writer.PartWriter.finish",
    "holdfast.checkpoint.write.committer.Committer.commit",
    "holdfast.checkpoint.restore.model.ModelRestorer.restore",
]


def train_new(job: Job, url: str, how: dict[str, Any], *, steps: int, every: int, **options: Any) -> None:
    """A new run, with a save at every so many steps."""
    job.call("build", **how)
    job.call("guard", url=url, **{"strategy": hf.Consecutive(), **options})
    assert job.call("resume") == [0] * job.world
    job.call("train", steps=steps, save_every=every)


def resume(job: Job, url: str, how: dict[str, Any], step: int, **options: Any) -> None:
    """Go on with a run that was saved at a step, from other random numbers."""
    job.call("build", **how, seed=1 + step)
    job.call("guard", url=url, **{"strategy": hf.Consecutive(), **options})
    assert job.call("resume") == [step] * job.world


def train_with_each_strategy(job: Job, folder: Path, how: dict[str, Any]) -> list[str]:
    """One training of six steps that each strategy saves three times; the runs."""
    urls = [str(folder / type(strategy).__name__) for strategy in STRATEGIES]
    job.call("build", **how)
    job.call("guard", url=urls[0], strategy=STRATEGIES[0])
    assert job.call("resume") == [0] * job.world
    for url, strategy in zip(urls[1:], STRATEGIES[1:], strict=True):
        job.call("guard_also", url=url, strategy=strategy)
    job.call("train", steps=6, save_every=2)
    return urls


def kill_in_training(job: Job) -> None:
    """A rank is killed while all train, and then the others."""
    job.ask("train", steps=100)
    job.kill(2)
    job.stop()


def die_in(job: Job, url: str, how: dict[str, Any], where: str) -> tuple[int, ...]:
    """One of two ranks is killed in a save of step 6, or in a restore of step 4; the steps that a resume may find."""
    if where.endswith("restore"):
        job.call("build", **how, seed=1)
        job.call("guard", url=url)
    job.ask_one(1, "die_in", where=where)
    if where.endswith("restore"):
        job.ask("resume")
    else:
        job.ask("train", steps=2, save_every=2)
    job.processes[1].join(60)
    assert job.processes[1].exitcode == -9
    job.kill(0)
    return (4, 6) if where.endswith("commit") else (4,)  # the other rank may find all parts, and commit
