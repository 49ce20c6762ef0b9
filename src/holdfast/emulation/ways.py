"""The ways to survive failures that an emulation compares (CPR, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.planner import Emulation, FailureSchedule, Job, Recovery, compare, full_interval_s
from holdfast.policy.priority import MFU, SCAR, SSU, Priority

_PRIORITIES: Final[dict[str, Callable[[float], Priority] | None]] = {
    "cpr-vanilla": None,
    "cpr-scar": lambda r: SCAR(r),
    "cpr-mfu": lambda r: MFU(r),
    "cpr-ssu": lambda r: SSU(r),
}
FULL: Final = "full"
PARTIAL: Final = "partial"
NAMES: Final = (FULL, PARTIAL, *_PRIORITIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How one job recovers, how often it saves, and what comes first."""

    name: str
    job: Job
    recovery: Recovery
    interval_s: float | None  # None: no save after the baseline
    priority: Priority | None = None

    def emulation(self, schedule: FailureSchedule, steps: int) -> Emulation:
        """The same for the clock."""
        return Emulation(
            steps=steps,
            schedule=schedule,
            recovery=self.recovery,
            interval_s=self.interval_s,
            save_s=self.job.save_s,
            load_s=self.job.load_s,
            reschedule_s=self.job.reschedule_s,
            priority_share=None if self.priority is None else self.priority.r,
        )


def ways(job: Job, pls: float, names: Sequence[str] = NAMES, *, r: float = 0.125) -> tuple[Way, ...]:
    """By name. ``partial`` saves as often as ``full``; CPR's keep to a PLS, or recover fully where that costs less."""
    if unknown := [name for name in names if name not in NAMES]:
        raise ConfigurationError(f"unknown strategy {unknown[0]!r}; choose from {', '.join(NAMES)}")
    return tuple(_way(name, job, pls, r) for name in dict.fromkeys(names))


def _way(name: str, job: Job, pls: float, r: float) -> Way:
    if name in (FULL, PARTIAL):
        return Way(name=name, job=job, recovery=Recovery(name), interval_s=full_interval_s(job))
    chosen = compare(job, pls)
    make = _PRIORITIES[name]
    priority = make(r) if make and chosen.recovery is Recovery.PARTIAL else None
    interval_s = chosen.interval_s
    if priority is not None and interval_s is None:
        interval_s = job.total_s  # its end never comes, but the priority saves on the way do
    return Way(name=name, job=job, recovery=chosen.recovery, interval_s=interval_s, priority=priority)
