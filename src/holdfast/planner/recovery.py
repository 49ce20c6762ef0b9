"""Full and partial recovery: what they cost, how often to save for each, and which of them to choose (CPR).

Equation 1 counts T_total / T_save saves. That is right while overheads are small; ``corrected=True`` counts the saves
of the longer job that the overheads make of it, (T_total + O_total) / T_save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from holdfast.planner.job import Job, Overheads
from holdfast.planner.pls import expected_pls
from holdfast.policy.arguments import is_finite_number, require
from holdfast.policy.pls import require_pls


class Recovery(Enum):
    """Who goes back at a failure."""

    FULL = "full"  # everyone, to the last checkpoint
    PARTIAL = "partial"  # the failed servers, to their last save; the others keep what they have learnt


def full_recovery(job: Job, interval_s: float, *, corrected: bool = False) -> Overheads:
    """Equation 1: a failure loses half an interval on average."""
    interval_s = job.checked_interval(interval_s)
    return _overheads(job, interval_s, lost_s=job.failures * interval_s / 2, corrected=corrected)


def partial_recovery(job: Job, interval_s: float | None, *, corrected: bool = False) -> Overheads:
    """Equation 2: no training is done again. Without an interval there is no save after the baseline."""
    if interval_s is not None:
        interval_s = job.checked_interval(interval_s)
    return _overheads(job, interval_s, lost_s=0.0, corrected=corrected)


def full_interval_s(job: Job, *, corrected: bool = False) -> float:
    """The interval of least overhead under full recovery, at most the job's length.

    √(2·O_save·T_fail), or with the corrected count of saves the root of the derivative,
    O_save + √(O_save² + 2·O_save·(T_fail + O_load + O_res)).
    """
    best_s = math.sqrt(2 * job.save_s * job.mtbf_s)
    if corrected:
        down_s = job.mtbf_s + job.load_s + job.reschedule_s
        best_s = job.save_s + math.sqrt(job.save_s**2 + 2 * job.save_s * down_s)
    return min(best_s, job.total_s)


def partial_interval_s(job: Job, pls: float) -> float | None:
    """The interval whose expected PLS is ``pls``: 2·PLS·N_emb·T_fail for one server. None: longer than the job."""
    require_pls(pls)
    interval_s = 2 * pls * job.mtbf_s / job.lost_share
    return interval_s if interval_s <= job.total_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The benefit analysis (section 4.2): partial recovery where it pays, else full recovery."""

    recovery: Recovery
    job: Job
    full_interval_s: float
    full: Overheads
    partial_interval_s: float | None
    partial: Overheads
    expected_pls: float  # of what was chosen

    @property
    def overheads(self) -> Overheads:
        """The overheads of the chosen recovery."""
        return self.full if self.recovery is Recovery.FULL else self.partial

    @property
    def interval_s(self) -> float | None:
        """The save interval of the chosen recovery."""
        return self.full_interval_s if self.recovery is Recovery.FULL else self.partial_interval_s

    @property
    def reduction(self) -> float:
        """The share of full recovery's overhead that the choice avoids."""
        return 1 - self.overheads.total_s / self.full.total_s if math.isfinite(self.full.total_s) else 1.0


def compare(job: Job, pls: float, *, least_benefit: float = 0.0, corrected: bool = False) -> Comparison:
    """Choose partial recovery if it avoids more than ``least_benefit`` of full recovery's overhead."""
    fits = is_finite_number(least_benefit) and 0 <= least_benefit < 1
    require(fits, job, "least_benefit", "at least 0 and below 1", least_benefit)
    full_s, partial_s = full_interval_s(job, corrected=corrected), partial_interval_s(job, pls)
    full = full_recovery(job, full_s, corrected=corrected)
    partial = partial_recovery(job, partial_s, corrected=corrected)
    pays = partial.total_s < (1 - least_benefit) * full.total_s
    return Comparison(
        recovery=Recovery.PARTIAL if pays else Recovery.FULL,
        job=job,
        full_interval_s=full_s,
        full=full,
        partial_interval_s=partial_s,
        partial=partial,
        expected_pls=expected_pls(job, partial_s) if pays else 0.0,
    )


def _overheads(job: Job, interval_s: float | None, *, lost_s: float, corrected: bool) -> Overheads:
    failures = Overheads(load_s=job.failures * job.load_s, lost_s=lost_s, reschedule_s=job.failures * job.reschedule_s)
    if interval_s is None:
        return failures
    saving = job.save_s / interval_s
    if not corrected:
        return failures + Overheads(save_s=saving * job.total_s)
    # O_save is its share of the whole time, T_total + O_total: a geometric series, without end where saves fill it.
    rest_s = job.total_s + failures.total_s
    return failures + Overheads(save_s=rest_s * saving / (1 - saving) if saving < 1 else math.inf)
