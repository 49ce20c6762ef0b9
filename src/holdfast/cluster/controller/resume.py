"""Where a job begins: at the newest checkpoint of its run, or at the very beginning."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.checkpoint.shards.run import ShardedRun
from holdfast.cluster.core.progress import Progress
from holdfast.cluster.plan import ModelPlan
from holdfast.cluster.saved import saved_progress
from holdfast.errors import DamagedData

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Of a job.

    Args:
        term: Of the run, raised by this job.
        checkpoint: Its id; empty for the very beginning.
        step: Of that checkpoint.
        progress: How far each worker had come.
        pls: The meter of lost samples, where there was one.
    """

    term: int
    checkpoint: str = ""
    step: int = 0
    progress: Mapping[int, Progress] = field(default_factory=dict)
    pls: Mapping[str, float | None] | None = None


def find_beginning(run: ShardedRun, plan: ModelPlan, *, workers: int) -> Beginning:
    """Take the run over, and find the newest checkpoint that can be read."""
    term = run.take_over()
    failed = []
    for info in run.candidates():
        try:
            loaded = run.load((), info.id)
        except DamagedData as error:
            logger.warning("checkpoint %s of step %d cannot be read: %s", info.id, info.step, error)
            failed.append(info.id)
            continue
        assert loaded.state is not None
        run.go_back(info.id, failed=failed)
        progress = saved_progress(loaded.state, plan, step=info.step)
        if progress and len(progress) != workers:
            logger.warning(
                "the run has had %d workers, and goes on with %d: each goes on at its own place in the data. What "
                "workers that are gone had not read yet stays unread until one has their place again, and new ones "
                "begin at the start of their part",
                len(progress),
                workers,
            )
        return Beginning(term=term, checkpoint=info.id, step=info.step, progress=progress, pls=loaded.job.pls)
    return Beginning(term=term)
