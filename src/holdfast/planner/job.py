"""The job being planned, in the terms of CPR's cost model, and what failures cost it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Self

from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import is_finite_number, require, require_count, require_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training of ``total_s`` without failures, that fails every ``mtbf_s`` and loses some of its servers then."""

    total_s: float  # T_total
    mtbf_s: float  # T_fail
    save_s: float  # O_save: how long training waits for one save
    load_s: float  # O_load: to read a checkpoint back
    reschedule_s: float = 0.0  # O_res: until there is a machine again
    servers: int = 1  # N_emb: between them they hold the embedding tables
    lost_servers: int = 1  # of them at each failure

    def __post_init__(self) -> None:
        for name in ("total_s", "mtbf_s", "save_s"):
            require_duration(self, name, getattr(self, name))
        for name in ("load_s", "reschedule_s"):
            value = getattr(self, name)
            require(is_finite_number(value) and value >= 0, self, name, "a finite number of at least 0", value)
        require_servers(self, self.servers, self.lost_servers)

    @property
    def failures(self) -> float:
        """The expected number of failures."""
        return self.total_s / self.mtbf_s

    @property
    def lost_share(self) -> float:
        """The share of the embedding tables that a failure takes."""
        return self.lost_servers / self.servers

    def checked_interval(self, interval_s: float) -> float:
        """A save interval that this job can have."""
        require_duration(self, "interval_s", interval_s)
        if interval_s > self.total_s:
            raise ConfigurationError(
                f"a save every {interval_s / 3600:g} h never happens in a job of {self.total_s / 3600:g} h: shorten "
                "the interval, or pass None for no save after the first baseline"
            )
        return interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Time that is not training, by cause: CPR's four, and what parity costs."""

    save_s: float = 0.0
    load_s: float = 0.0
    lost_s: float = 0.0  # training that is done again
    reschedule_s: float = 0.0
    parity_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it; infinite where a job would never end."""
        return math.fsum(getattr(self, field.name) for field in fields(self))

    def share_of(self, job_s: float) -> float:
        """As a share of the training itself."""
        return self.total_s / job_s

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )


def require_servers(owner: object, servers: int, lost_servers: int) -> None:
    """Refuse a failure of more servers than there are."""
    require_count(owner, "servers", servers)
    require_count(owner, "lost_servers", lost_servers)
    if lost_servers > servers:
        raise ConfigurationError(
            f"{type(owner).__name__}: lost_servers is {lost_servers} of {servers} servers; at most all of them can fail"
        )
