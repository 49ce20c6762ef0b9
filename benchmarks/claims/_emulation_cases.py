"""What the emulation trains: the jobs of CPR's figures 7, 9 and 12, each with every way to recover that it compares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from holdfast.emulation import NAMES, Way, ways
from holdfast.planner import FailureSchedule, Job, Recovery
from holdfast.policy.priority import MFU, SSU

HOUR_S = 3600.0
MINUTE_S = 60.0
SERVERS = 16
LOST = {"12": 2, "25": 4, "50": 8}  # servers, by the percentage of the tables that they hold
FAILURES = 2
PLS = 0.1
SWEEP = {"02": 0.02, "20": 0.2}  # figure 9, beside PLS, by percentage
UNDISTURBED = "undisturbed"

# What figure 7 implies: full recovery at 8.5% and partial recovery at 4.4% of the time.
JOB = Job(
    total_s=56 * HOUR_S,
    mtbf_s=28 * HOUR_S,
    save_s=5.65 * MINUTE_S,
    load_s=3.0 * MINUTE_S,
    reschedule_s=2.0 * MINUTE_S,
    servers=SERVERS,
    lost_servers=LOST["12"],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training: a way to recover from the failures of one schedule."""

    seed: int
    group: str
    way: Way | None = None  # None: nothing happens
    schedule: FailureSchedule | None = None

    @property
    def key(self) -> str:
        """Its name among those of a seed."""
        return UNDISTURBED if self.way is None else f"{self.group}/{self.way.name}"


def cases(seed: int, draws: int) -> list[Case]:
    """Everything that is trained with a seed; full recovery is not, because it ends where nothing happened."""
    found = [Case(seed=seed, group=UNDISTURBED)]
    for percent, lost in LOST.items():
        names = [name for name in NAMES if name != "full" and (percent == "12" or name != "partial")]
        found += _paper_cases(seed, f"lost_{percent}", lost, PLS, names)
    for percent, pls in SWEEP.items():
        found += _paper_cases(seed, f"pls_{percent}", LOST["12"], pls, ["cpr-vanilla", "cpr-ssu"])
    for draw in range(draws):
        found += _drawn_cases(seed, draw)
    return found


def job(lost_servers: int) -> Job:
    """The job whose failures take so many servers."""
    return replace(JOB, lost_servers=lost_servers)


def schedule(lost_servers: int, seed: int) -> FailureSchedule:
    """Two failures at any time (section 5.1)."""
    return FailureSchedule.uniform(FAILURES, total_s=JOB.total_s, servers=SERVERS, lost_servers=lost_servers, seed=seed)


def _paper_cases(seed: int, group: str, lost: int, pls: float, names: list[str]) -> Iterator[Case]:
    for way in ways(job(lost), pls, names):
        yield Case(seed=seed, group=group, way=way, schedule=schedule(lost, seed))


def _drawn_cases(seed: int, draw: int) -> Iterator[Case]:
    """1 to 32 failures of 6.25 to 50% at any interval (section 6.5), up to where the loss begins to level off."""
    rng = np.random.default_rng([seed, draw, 2])
    failures, lost = int(rng.integers(1, 33)), int(rng.choice([1, 2, 4, 8]))
    interval_s = float(rng.uniform(2, 24)) * HOUR_S
    drawn = FailureSchedule.uniform(
        failures, total_s=JOB.total_s, servers=SERVERS, lost_servers=lost, seed=int(rng.integers(2**31))
    )
    for name, priority in (("cpr-vanilla", None), ("cpr-mfu", MFU()), ("cpr-ssu", SSU())):
        way = Way(name=name, job=job(lost), recovery=Recovery.PARTIAL, interval_s=interval_s, priority=priority)
        yield Case(seed=seed, group=f"draw_{draw}", way=way, schedule=drawn)
