"""The ways to survive failures that an emulation compares: CPR's (section 5.1), and parity above them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.planner import (
    Emulation,
    FailureSchedule,
    Job,
    Ladder,
    ParityOption,
    ParityPrice,
    Recovery,
    Repairs,
    choose,
    compare,
    full_interval_s,
    parities_for,
)
from holdfast.policy.priority import MFU, SCAR, SSU, Priority

_PRIORITIES: Final[dict[str, Callable[[float], Priority] | None]] = {
    "cpr-vanilla": None,
    "cpr-scar": lambda r: SCAR(r),
    "cpr-mfu": lambda r: MFU(r),
    "cpr-ssu": lambda r: SSU(r),
}
FULL: Final = "full"
PARTIAL: Final = "partial"
PARITY: Final = "parity"
NAMES: Final = (FULL, PARTIAL, *_PRIORITIES, PARITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How one job recovers, how often it saves, and what comes first."""

    name: str
    job: Job
    recovery: Recovery
    interval_s: float | None  # None: no save after the baseline
    priority: Priority | None = None
    repairs: Repairs | None = None  # by parity, of what it can

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
            repairs=self.repairs,
        )


def ways(
    job: Job, pls: float, names: Sequence[str] = NAMES, *, r: float = 0.125, repair_s: float = 300.0
) -> tuple[Way, ...]:
    """By name. ``partial`` saves as often as ``full``; CPR's keep to a PLS, or recover fully where that costs less.

    ``parity`` is what a cluster's planner chooses for so many servers, above ``cpr-vanilla``; a repair takes
    ``repair_s``.
    """
    if unknown := [name for name in names if name not in NAMES]:
        raise ConfigurationError(f"unknown strategy {unknown[0]!r}; choose from {', '.join(NAMES)}")
    return tuple(_way(name, job, pls, r, repair_s) for name in dict.fromkeys(names))


def _way(name: str, job: Job, pls: float, r: float, repair_s: float) -> Way:
    if name in (FULL, PARTIAL):
        return Way(name=name, job=job, recovery=Recovery(name), interval_s=full_interval_s(job))
    if name == PARITY:
        beneath = _way("cpr-vanilla", job, pls, r, repair_s)
        return replace(beneath, name=name, repairs=_repairs(job, repair_s))
    chosen = compare(job, pls)
    make = _PRIORITIES[name]
    priority = make(r) if make and chosen.recovery is Recovery.PARTIAL else None
    interval_s = chosen.interval_s
    if priority is not None and interval_s is None:
        interval_s = job.total_s  # its end never comes, but the priority saves on the way do
    return Way(name=name, job=job, recovery=chosen.recovery, interval_s=interval_s, priority=priority)


def _repairs(job: Job, repair_s: float) -> Repairs:
    chosen = choose(Ladder(), [ParityOption(parity=each, needed_bytes=0) for each in parities_for(job.servers)])
    if chosen.ladder.parity is None:
        raise ConfigurationError(f"{chosen.why}, and this job has {job.servers}: emulate more, or another strategy")
    return Repairs(price=ParityPrice(parity=chosen.ladder.parity), repair_s=repair_s)
