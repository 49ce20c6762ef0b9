"""The rungs of the recovery ladder for one job: each a setting with its expected overhead.

Unlike in CPR's equations, a save here is a copy that training waits for and a write in the background. So the next save
cannot start before the last one is written, and a failure loses that much more time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.planner.deltas import ChangedShare, Rates, RowFormat, sizes_of
from holdfast.planner.job import Job, Overheads, require_servers
from holdfast.planner.parity import ParityPrice
from holdfast.planner.pls import expected_pls
from holdfast.planner.recovery import Recovery, full_recovery, partial_recovery
from holdfast.policy import Stored, Strategy
from holdfast.policy.arguments import is_finite_number, require, require_duration
from holdfast.policy.pls import require_pls
from holdfast.types import BASELINE_BITS, EXACTLY

_TRIED: Final = 24  # intervals; then twice as many again between the neighbours of the best
_NEVER: Final = 1e-12  # an escape from parity so unlikely that it need not be divided by


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
    is_cluster: bool = False  # servers are processes of their own, which fail one by one

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
    stored: Stored
    price: ParityPrice | None  # of the parity above it
    interval_s: float | None  # None: no save after the first baseline
    write_s: float  # one save, in the background
    written_bytes: float  # by one save
    overheads: Overheads
    overhead_share: float
    expected_pls: float

    @property
    def bits(self) -> int:
        """Of a value in a checkpoint; of differences, those that tell them."""
        return self.stored.bits or 32

    @property
    def is_exact(self) -> bool:
        """Whether every recovery gives back each bit of some saved or present state."""
        return self.stored.bits is None and self.expected_pls == 0

    @property
    def memory_share(self) -> float:
        """Memory beyond that of the tables."""
        return self.price.memory_share if self.price else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """What saving every ``interval_s`` by a strategy amounts to."""

    strategy: Strategy
    stored: Stored
    interval_s: float
    job: Job  # as CPR's equations see it
    write_s: float
    written_bytes: float

    @property
    def keeps_up(self) -> bool:
        """Whether a save is written before the next one comes."""
        return self.write_s <= self.interval_s


def full_rung(name: str, work: Workload, strategy: Strategy, *, stored: Stored = EXACTLY) -> Rung:
    """Everyone goes back to the last checkpoint."""

    def at(interval_s: float) -> Rung:
        saving = _saving(work, strategy, stored, interval_s)
        overheads = full_recovery(saving.job, interval_s, corrected=True)
        overheads += Overheads(lost_s=saving.job.failures * saving.write_s)
        return _rung(name, Recovery.FULL, saving, overheads)

    return _best(at, work.total_s)


def partial_rung(name: str, work: Workload, strategy: Strategy, pls: float, *, stored: Stored = EXACTLY) -> Rung:
    """The failed servers go back to their last save; training saves no more often than a PLS budget asks for."""
    require_pls(pls)
    per_pls_s = work.mtbf_s * work.servers / work.lost_servers  # how old the saves may be, per unit of PLS
    if work.total_s / 2 <= pls * per_pls_s:
        return _unsaved_rung(name, work, strategy, stored)
    interval_s = _interval_within(2 * pls * per_pls_s, lambda at_s: _saving(work, strategy, stored, at_s).write_s)
    saving = _saving(work, strategy, stored, interval_s)
    rung = _rung(name, Recovery.PARTIAL, saving, partial_recovery(saving.job, interval_s, corrected=True))
    return replace(rung, expected_pls=(interval_s / 2 + saving.write_s) / per_pls_s)


def parity_rung(name: str, work: Workload, price: ParityPrice, beneath: Callable[[Workload], Rung]) -> Rung:
    """Lost servers are rebuilt from the others; what parity cannot repair is left to the rung beneath."""
    price.parity.require_servers(work.servers)
    window_s = work.reschedule_s + price.rebuild_s(work.model_bytes / work.servers)  # each by itself, at once
    escapes = price.escape_probability(
        mtbf_s=work.mtbf_s, window_s=window_s, servers=work.servers, lost_servers=work.lost_servers
    )
    failures = work.total_s / work.mtbf_s
    own = price.overheads(total_s=work.total_s, failures=failures * (1 - escapes), window_s=window_s)
    backup = beneath(replace(work, mtbf_s=work.mtbf_s / max(escapes, _NEVER)))
    overheads = backup.overheads + own
    return replace(backup, name=name, price=price, overheads=overheads, overhead_share=overheads.share_of(work.total_s))


def _saving(work: Workload, strategy: Strategy, stored: Stored, interval_s: float) -> _Saving:
    own = RowFormat(bits=stored.bits or 32, dim=work.dim)
    baseline = RowFormat(bits=BASELINE_BITS, dim=work.dim) if stored.difference else own
    stored_bytes = work.model_bytes * baseline.size_share
    sizes = sizes_of(
        strategy,
        changed=work.changed,
        interval_s=interval_s,
        total_s=work.total_s,
        delta_share=own.size_share / baseline.size_share,
    )
    job = Job(
        total_s=work.total_s,
        mtbf_s=work.mtbf_s,
        save_s=sizes.rows * work.model_bytes / work.rates.copy_bytes_per_s,
        load_s=sizes.read * stored_bytes / work.rates.read_bytes_per_s,
        reschedule_s=work.reschedule_s,
        servers=work.servers,
        lost_servers=work.lost_servers,
    )
    written_bytes = sizes.written * stored_bytes
    return _Saving(
        strategy=strategy,
        stored=stored,
        interval_s=interval_s,
        job=job,
        write_s=written_bytes / work.rates.write_bytes_per_s,
        written_bytes=written_bytes,
    )


def _rung(name: str, recovery: Recovery, saving: _Saving, overheads: Overheads) -> Rung:
    if not saving.keeps_up:
        overheads += Overheads(save_s=math.inf)
    return Rung(
        name=name,
        recovery=recovery,
        strategy=saving.strategy,
        stored=saving.stored,
        price=None,
        interval_s=saving.interval_s,
        write_s=saving.write_s,
        written_bytes=saving.written_bytes,
        overheads=overheads,
        overhead_share=overheads.share_of(saving.job.total_s),
        expected_pls=0.0,
    )


def _unsaved_rung(name: str, work: Workload, strategy: Strategy, stored: Stored) -> Rung:
    """Partial recovery from the first baseline alone: the job is so short that it may."""
    baseline = replace(_saving(work, strategy, stored, work.total_s), write_s=0.0, written_bytes=0.0)
    rung = _rung(name, Recovery.PARTIAL, baseline, partial_recovery(baseline.job, None))
    return replace(rung, interval_s=None, expected_pls=expected_pls(baseline.job, None))


def _interval_within(oldest_s: float, write_s: Callable[[float], float]) -> float:
    """The longest interval for which an interval and two writes take no longer than ``oldest_s``."""
    interval_s = oldest_s
    for _ in range(50):
        interval_s = max(oldest_s / 1000, oldest_s - 2 * write_s(interval_s))
    return interval_s


def _best(at: Callable[[float], Rung], total_s: float) -> Rung:
    """The interval of least overhead, by trying them: sizes depend on it through the strategy's own decisions."""
    low, high = total_s * 1e-5, total_s
    best = at(high)
    for _ in range(3):
        ratio = (high / low) ** (1 / _TRIED)
        best = min(best, *(at(low * ratio**n) for n in range(_TRIED)), key=lambda rung: rung.overhead_share)
        assert best.interval_s is not None
        low, high = max(low, best.interval_s / ratio), min(high, best.interval_s * ratio)
    return best
