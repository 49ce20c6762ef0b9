"""What earlier jobs of a run tell of the next one: how often servers died, and how long a save interval lasts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.cluster.core.members import Role
from holdfast.cluster.happenings import Died
from holdfast.cluster.record import JobRecord, read_jobs
from holdfast.errors import HoldfastError
from holdfast.policy import UNREACHABLE_STEPS, SaveContext, SavePolicy
from holdfast.storage import Store

logger = logging.getLogger("holdfast")

_LEAST_DEATHS = 3  # of fewer, nothing follows
_LONGEST_S = 366 * 86400.0  # that a save interval is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Of a run.

    Args:
        mtbf_s: Between deaths of servers; None: too few have died to tell.
        interval_s: Between checkpoints; None: not known.
    """

    mtbf_s: float | None = None
    interval_s: float | None = None

    @classmethod
    def of(cls, store: Store, save: SavePolicy) -> History:
        """From the records of a run's jobs. Where they cannot be read, nothing is known."""
        try:
            jobs = read_jobs(store)
        except HoldfastError as error:
            logger.warning("records of earlier jobs are not considered: %s", error)
            jobs = ()
        return cls(mtbf_s=_mtbf_s(jobs), interval_s=_interval_s(save, _steps_per_s(jobs)))


def _mtbf_s(jobs: Sequence[JobRecord]) -> float | None:
    died = sum(isinstance(event, Died) and event.member.role is Role.SERVER for job in jobs for event in job.events)
    ran_s = sum(_span(job)[0] for job in jobs)
    return ran_s / died if died >= _LEAST_DEATHS and ran_s > 0 else None


def _steps_per_s(jobs: Sequence[JobRecord]) -> float | None:
    """Of the last job that took some."""
    speeds = (steps / took_s for took_s, steps in map(_span, reversed(jobs)) if took_s > 0 and steps > 0)
    return next(speeds, None)


def _span(job: JobRecord) -> tuple[float, int]:
    """How long a job was at work, and how many steps it took meanwhile."""
    if len(job.speeds) < 2:
        return 0.0, 0
    first, last = job.speeds[0], job.speeds[-1]
    return max(0.0, last.at_s - first.at_s), last.step - first.step


def _interval_s(save: SavePolicy, steps_per_s: float | None) -> float | None:
    """As long as the policy lets pass: by its steps at the speed of the last job, or by its clock."""
    start = SaveContext(step=0, now_s=0.0, last_save_step=0, last_save_s=0.0)
    steps = save.steps_until_due(start)
    if steps is None:
        return _due_after_s(save)
    return None if steps == UNREACHABLE_STEPS or steps_per_s is None else steps / steps_per_s


def _due_after_s(save: SavePolicy) -> float | None:
    """The policy is asked at ever finer times."""
    low_s, high_s = 0.0, _LONGEST_S
    if not _is_due(save, high_s):
        return None
    while high_s - low_s > 1.0:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if _is_due(save, middle_s) else (middle_s, high_s)
    return high_s


def _is_due(save: SavePolicy, after_s: float) -> bool:
    return save.due(SaveContext(step=1, now_s=after_s, last_save_step=1, last_save_s=0.0))
