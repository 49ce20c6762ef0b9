"""When failures strike an emulated job and which of its servers they hit; deterministic for a given seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from holdfast.errors import ConfigurationError
from holdfast.planner.failures import FailureModel
from holdfast.planner.job import require_servers
from holdfast.policy.arguments import require, require_count, require_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Some servers lose what they hold, at a given training time."""

    at_s: float  # of training: overheads, and training that is done again, do not count
    servers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSchedule:
    """The failures of one job, in order. Times are training times, so every strategy faces the same failures."""

    total_s: float
    servers: int
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        require_duration(self, "total_s", self.total_s)
        require_count(self, "servers", self.servers)
        for failure in self.failures:
            require_servers(self, self.servers, len(failure.servers))
            known = len(set(failure.servers) & set(range(self.servers))) == len(failure.servers)
            require(known, self, "servers of a failure", f"different numbers below {self.servers}", failure.servers)
            inside = 0 < failure.at_s <= self.total_s
            require(inside, self, "at_s of a failure", f"within the job's {self.total_s:g} s", failure.at_s)
        times = [failure.at_s for failure in self.failures]
        require(times == sorted(times), self, "failures", "in the order of their times", times)

    @classmethod
    def given(cls, at_s: Sequence[float], *, total_s: float, servers: int, lost_servers: int, seed: int = 0) -> Self:
        """At these times; the seed draws the servers."""
        owner = cls(total_s=total_s, servers=servers)
        require_servers(owner, servers, lost_servers)
        rng = np.random.default_rng([seed, 1])
        failures = tuple(
            Failure(at_s=float(time_s), servers=_drawn_servers(rng, servers, lost_servers)) for time_s in sorted(at_s)
        )
        return cls(total_s=total_s, servers=servers, failures=failures)

    @classmethod
    def uniform(cls, count: int, *, total_s: float, servers: int, lost_servers: int, seed: int) -> Self:
        """So many, each at any time with the same probability (CPR, section 5.1)."""
        if not isinstance(count, int) or count < 0:
            raise ConfigurationError(f"FailureSchedule: count must be a whole number of at least 0, got {count!r}")
        times = total_s * (1 - np.random.default_rng([seed, 0]).random(count))
        return cls.given(times.tolist(), total_s=total_s, servers=servers, lost_servers=lost_servers, seed=seed)

    @classmethod
    def drawn(cls, model: FailureModel, *, total_s: float, servers: int, lost_servers: int, seed: int) -> Self:
        """From a failure model: after each failure the time to the next one is drawn anew."""
        times = list(_renewals(model, total_s, np.random.default_rng([seed, 0])))
        return cls.given(times, total_s=total_s, servers=servers, lost_servers=lost_servers, seed=seed)


def _renewals(model: FailureModel, total_s: float, rng: np.random.Generator) -> Iterator[float]:
    at_s = float(model.sample(rng))
    while at_s <= total_s:
        yield at_s
        at_s += float(model.sample(rng))


def _drawn_servers(rng: np.random.Generator, servers: int, count: int) -> tuple[int, ...]:
    return tuple(sorted(rng.choice(servers, size=count, replace=False).tolist()))
