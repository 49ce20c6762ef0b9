"""The portion of lost samples that a job must expect (CPR, section 4.1)."""

from __future__ import annotations

from holdfast.planner.job import Job


def expected_pls(job: Job, interval_s: float | None) -> float:
    """Equation 4: every failure loses half an interval of the failed servers' part. None: no save but the baseline."""
    interval_s = job.total_s if interval_s is None else job.checked_interval(interval_s)
    return 0.5 * interval_s / job.mtbf_s * job.lost_share
