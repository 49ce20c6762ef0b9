"""The rungs of the recovery ladder for one job: each a setting with its expected overhead.

Beyond CPR's equations, a save here is a copy that training waits for and a write in the background. So the next save
cannot come before the last one is written, and what a failure loses is older by that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.planner.deltas import ChangedShare, Rates, RowFormat, Sizes, sizes_of
from holdfast.planner.job import Job, Overheads, require_servers
from holdfast.planner.parity import Parity
from holdfast.planner.pls import expected_pls, require_pls
from holdfast.planner.recovery import Recovery, full_recovery, partial_recovery
from holdfast.policy import Strategy
from holdfast.policy.arguments import is_finite_number, require, require_duration

_TRIED: Final = 24  # intervals; then twice as many again between the neighbours of the best


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training and its machines."""

    total_s: float
    mtbf_s: float
    model_bytes: float  # tables and slots
    rates: Rates
    reschedule_s: float = 0.0
    servers: int = 1
    lost_servers: int = 1
    changed: ChangedShare = ChangedShare()  # noqa: RUF009 - frozen
    dim: int = 64

    def __post_init__(self) -> None:
        for name in ("total_s", "mtbf_s", "model_bytes"):
            require_duration(self, name, getattr(self, name))
        fits = is_finite_number(self.reschedule_s) and self.reschedule_s >= 0
        require(fits, self, "reschedule_s", "a finite number of at least 0", self.reschedule_s)
        require_servers(self, self.servers, self.lost_servers)
        RowFormat(dim=self.dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One way to survive failures, with its best save interval for a workload."""

    name: str
    recovery: Recovery
    strategy: Strategy
    bits: int
    parity: Parity | None
    interval_s: float | None  # None: no save after the first baseline
    write_s: float  # one save, in the background
    written_bytes: float  # by one save
    overheads: Overheads
    overhead_share: float
    expected_pls: float

    @property
    def is_exact(self) -> bool:
        """Whether every recovery gives back each bit of some saved or present state."""
        return self.bits == 32 and self.expected_pls == 0

    @property
    def memory_share(self) -> float:
        """Memory beyond that of the tables."""
        return self.parity.memory_share if self.parity else 0.0


def full_rung(name: str, work: Workload, strategy: Strategy, *, bits: int = 32) -> Rung:
    """Everyone goes back to the last checkpoint."""

    def at(interval_s: float) -> Rung:
        job, sizes, write_s = _job_at(work, strategy, bits, interval_s)
        overheads = full_recovery(job, interval_s, corrected=True)
        overheads += Overheads(lost_s=job.failures * write_s)
        return _rung(name, work, Recovery.FULL, strategy, bits, interval_s, sizes, write_s, overheads)

    return _best(at, work)


def partial_rung(name: str, work: Workload, strategy: Strategy, pls: float, *, bits: int = 32) -> Rung:
    """The failed servers go back to their last save; training saves no more often than a PLS budget asks for."""
    require_pls(pls)
    per_pls_s = work.mtbf_s * work.servers / work.lost_servers  # how old the saves may be, per unit of PLS
    if work.total_s / 2 <= pls * per_pls_s:
        return _unsaved_rung(name, work, strategy, bits)
    interval_s = _interval_within(2 * pls * per_pls_s, lambda at_s: _job_at(work, strategy, bits, at_s)[2])
    job, sizes, write_s = _job_at(work, strategy, bits, interval_s)
    overheads = partial_recovery(job, interval_s, corrected=True)
    rung = _rung(name, work, Recovery.PARTIAL, strategy, bits, interval_s, sizes, write_s, overheads)
    return replace(rung, expected_pls=(interval_s / 2 + write_s) / per_pls_s)


def parity_rung(name: str, work: Workload, parity: Parity, beneath: Callable[[Workload], Rung]) -> Rung:
    """Lost servers are rebuilt from the others; what parity cannot repair is left to the rung beneath."""
    parity.require_servers(work.servers)
    window_s = work.reschedule_s + parity.rebuild_s(work.model_bytes / work.servers)  # each by itself, at once
    escapes = parity.escape_probability(
        mtbf_s=work.mtbf_s, window_s=window_s, servers=work.servers, lost_servers=work.lost_servers
    )
    failures = work.total_s / work.mtbf_s
    own = parity.overheads(total_s=work.total_s, failures=failures * (1 - escapes), window_s=window_s)
    backup = beneath(replace(work, mtbf_s=work.mtbf_s / max(escapes, 1e-12)))
    overheads = backup.overheads + own
    return replace(
        backup, name=name, parity=parity, overheads=overheads, overhead_share=overheads.share_of(work.total_s)
    )


def _job_at(work: Workload, strategy: Strategy, bits: int, interval_s: float) -> tuple[Job, Sizes, float]:
    """The job as CPR's equations see it with this interval, its sizes, and how long a save takes to write."""
    stored_bytes = work.model_bytes * RowFormat(bits=bits, dim=work.dim).size_share
    sizes = sizes_of(
        strategy,
        changed=work.changed,
        interval_s=interval_s,
        total_s=work.total_s,
        stored_bytes=stored_bytes,
        rates=work.rates,
    )
    job = Job(
        total_s=work.total_s,
        mtbf_s=work.mtbf_s,
        save_s=sizes.written * work.model_bytes / work.rates.copy_bytes_per_s,
        load_s=sizes.read * stored_bytes / work.rates.read_bytes_per_s,
        reschedule_s=work.reschedule_s,
        servers=work.servers,
        lost_servers=work.lost_servers,
    )
    return job, sizes, sizes.written * stored_bytes / work.rates.write_bytes_per_s


def _rung(
    name: str,
    work: Workload,
    recovery: Recovery,
    strategy: Strategy,
    bits: int,
    interval_s: float | None,
    sizes: Sizes,
    write_s: float,
    overheads: Overheads,
) -> Rung:
    if interval_s is not None and write_s > interval_s:
        overheads += Overheads(save_s=math.inf)  # the store cannot keep up
    return Rung(
        name=name,
        recovery=recovery,
        strategy=strategy,
        bits=bits,
        parity=None,
        interval_s=interval_s,
        write_s=write_s,
        written_bytes=sizes.written * work.model_bytes * RowFormat(bits=bits, dim=work.dim).size_share,
        overheads=overheads,
        overhead_share=overheads.share_of(work.total_s),
        expected_pls=0.0,
    )


def _unsaved_rung(name: str, work: Workload, strategy: Strategy, bits: int) -> Rung:
    """Partial recovery from the first baseline alone: the job is so short that it may."""
    job, sizes, _ = _job_at(work, strategy, bits, work.total_s)
    overheads = partial_recovery(job, None)
    none = replace(sizes, written=0.0)
    rung = _rung(name, work, Recovery.PARTIAL, strategy, bits, None, none, 0.0, overheads)
    return replace(rung, expected_pls=expected_pls(job, None))


def _interval_within(oldest_s: float, write_s: Callable[[float], float]) -> float:
    """The longest interval for which an interval and two writes take no longer than ``oldest_s``."""
    interval_s = oldest_s
    for _ in range(50):
        interval_s = max(oldest_s / 1000, oldest_s - 2 * write_s(interval_s))
    return interval_s


def _best(at: Callable[[float], Rung], work: Workload) -> Rung:
    """The interval of least overhead, by trying them: sizes depend on it through the strategy's own decisions."""
    low, high = work.total_s * 1e-5, work.total_s
    best = at(high)
    for _ in range(3):
        ratio = (high / low) ** (1 / _TRIED)
        best = min(best, *(at(low * ratio**n) for n in range(_TRIED)), key=lambda rung: rung.overhead_share)
        assert best.interval_s is not None
        low, high = max(low, best.interval_s / ratio), min(high, best.interval_s * ratio)
    return best
