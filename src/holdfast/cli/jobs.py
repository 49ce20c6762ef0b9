"""What ``holdfast show`` draws of a cluster's jobs: their ladder, and by which rung each death was made up for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.drawing import count, plain, when
from holdfast.cli.tables import FittedTable
from holdfast.figures import NOTHING, number
from holdfast.printable import printable

if TYPE_CHECKING:
    from holdfast.cluster.deaths import Death
    from holdfast.cluster.record import JobRecord


def drawn_job(jobs: Sequence[JobRecord]) -> FittedTable | None:
    """Deaths in the newest job, or that there were none; None where no cluster trained."""
    if not jobs:
        return None
    job = jobs[-1]
    size = f"{job.servers} servers, {job.workers} workers"
    ladder = f", {printable(job.ladder)}" if job.ladder is not None else ""
    names = ("died", "who", "rung", "until at work", "steps", "samples", "PLS")
    drawn = FittedTable(*names, title=f"Job of term {job.term}: {size}{ladder}", optional=("samples", "died"))
    for death in job.deaths:
        drawn.add_row(*_row(death))
    if not job.deaths:
        drawn.add_row("nobody", *[""] * (len(names) - 1))
    return drawn


def plain_jobs(jobs: Sequence[JobRecord]) -> list[dict[str, Any]]:
    """For ``--json``: each with its deaths."""
    return [
        {
            "term": job.term,
            "servers": job.servers,
            "workers": job.workers,
            "synchronous": job.synchronous,
            "ladder": job.ladder,
            "deaths": [{**plain(death), "member": str(death.member)} for death in job.deaths],
        }
        for job in jobs
    ]


def _row(death: Death) -> list[str]:
    return [
        when(death.at_s),
        str(death.member),
        death.rung or NOTHING,
        NOTHING if death.replaced_s is None else f"{death.replaced_s:.1f} s",
        f"{count(death.lost_steps)}{' of everyone' if death.went_back else ''}",
        number(death.lost_samples),
        number(death.lost_pls),
    ]
