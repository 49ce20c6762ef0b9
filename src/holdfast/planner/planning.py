"""From a workload and its owner's limits to a recommended setting, with every alternative.

Only what the job can have is recommended. Partial recovery and parity need tables on servers that fail one by one, as
in a ``Cluster``; under a ``Checkpointer`` every rank holds the whole model. They are computed anyway, to show what such
servers would save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import ConfigurationError
from holdfast.figures import number
from holdfast.planner.deltas import stored_for
from holdfast.planner.parity import ParityPrice
from holdfast.planner.recovery import Recovery
from holdfast.planner.rungs import Rung, Workload, full_rung, parity_rung, partial_rung
from holdfast.policy import Full, Grid, Intermittent
from holdfast.policy.arguments import is_finite_number, require
from holdfast.policy.pls import require_pls

_PLS_TO_SHOW = 0.1  # CPR's own, for the comparison where none was allowed
_SERVERS = "tables on servers, as hf.Cluster has them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be given up. By default nothing: every recovery is exact and takes no memory."""

    pls: float | None = None  # None: no partial recovery
    quantized: bool = False  # whether checkpoints may lose precision
    memory_share: float = 0.0  # for parity, of the tables' memory
    overhead_share: float | None = None  # of the training time, at most

    def __post_init__(self) -> None:
        if self.pls is not None:
            require_pls(self.pls)
        fits = is_finite_number(self.memory_share) and self.memory_share >= 0
        require(fits, self, "memory_share", "a finite number of at least 0", self.memory_share)
        limit = self.overhead_share
        fits = limit is None or (is_finite_number(limit) and limit > 0)
        require(fits, self, "overhead_share", "above 0, or None", limit)

    def objections(self, rung: Rung) -> tuple[str, ...]:
        """How a rung exceeds this budget, each as a phrase."""
        found = []
        if math.isinf(rung.overhead_share):
            found.append("the store cannot keep up")
        if rung.expected_pls > 0 and (self.pls is None or rung.expected_pls > self.pls * (1 + 1e-6)):
            found.append(f"loses PLS {number(rung.expected_pls, 2)}")
        if rung.stored.bits is not None and not self.quantized:
            found.append(f"keeps {rung.stored}")
        if rung.memory_share > self.memory_share:
            found.append(f"takes {rung.memory_share:.0%} more memory")
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessed:
    """An alternative and what speaks against it."""

    rung: Rung
    objections: tuple[str, ...]  # what it takes beyond the budget
    needs: str | None  # what it would need that the job does not have; None: nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The alternatives, the least overhead first, and the best of those that the job can have within the budget."""

    workload: Workload
    budget: Budget
    alternatives: tuple[Assessed, ...]
    recommended: Rung
    unavailable: Assessed | None  # within the budget and better, but the job lacks what it needs

    @property
    def reduction(self) -> float:
        """The share of the overhead of full checkpoints that the recommended setting avoids."""
        return self.reduction_by(self.recommended)

    def reduction_by(self, rung: Rung) -> float:
        """The share of the overhead of full checkpoints that a setting avoids."""
        (full,) = (each.rung for each in self.alternatives if each.rung.name == "full")
        return 1 - rung.overhead_share / full.overhead_share if full.overhead_share < math.inf else 1.0


def plan(
    work: Workload,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    *,
    parity: ParityPrice | None = None,
) -> Plan:
    """Compare every rung and choose; raises where the budget allows none that the job can have."""
    rungs = sorted(_rungs(work, budget, parity), key=lambda rung: rung.overhead_share)
    assessed = tuple(
        Assessed(rung=rung, objections=budget.objections(rung), needs=_needs(rung, work)) for rung in rungs
    )
    allowed = [each for each in assessed if not each.objections]
    available = [each.rung for each in allowed if each.needs is None]
    if not available:
        raise ConfigurationError(_nothing_allowed(assessed))
    limit = budget.overhead_share
    if limit is not None and available[0].overhead_share > limit:
        raise ConfigurationError(_none_within(limit, available[0], assessed))
    return Plan(
        workload=work,
        budget=budget,
        alternatives=assessed,
        recommended=available[0],
        unavailable=allowed[0] if allowed[0].needs is not None else None,
    )


def _needs(rung: Rung, work: Workload) -> str | None:
    splits_tables = rung.recovery is Recovery.PARTIAL or rung.price is not None
    return _SERVERS if splits_tables and not work.is_cluster else None


def _rungs(work: Workload, budget: Budget, parity: ParityPrice | None) -> list[Rung]:
    failures = work.total_s / work.mtbf_s
    stored, differences = stored_for(failures), stored_for(failures, difference=True)
    pls = budget.pls or _PLS_TO_SHOW
    rungs = [
        full_rung("full", work, Full()),
        full_rung("deltas", work, Intermittent()),
        full_rung("grid", work, Grid()),
        partial_rung("partial", work, Full(), pls),
    ]
    if stored.bits is not None:  # else there are more failures than any bits are shown to bear
        rungs.append(full_rung("deltas, quantized", work, Intermittent(), stored=stored))
        rungs.append(full_rung("grid, quantized", work, Grid(), stored=stored))
        rungs.append(partial_rung("partial, quantized", work, Full(), pls, stored=stored))
    if differences.difference:  # else there are too many failures for them
        rungs.append(full_rung("deltas, of difference", work, Intermittent(), stored=differences))
        rungs.append(full_rung("grid, of difference", work, Grid(), stored=differences))
    if parity is not None:
        rungs.append(parity_rung("parity", work, parity, lambda rest: full_rung("deltas", rest, Intermittent())))
        rungs.append(parity_rung("parity, partial", work, parity, lambda rest: partial_rung("", rest, Full(), pls)))
    return rungs


def _nothing_allowed(assessed: tuple[Assessed, ...]) -> str:
    available = (each for each in assessed if each.needs is None)
    closest = min(available, key=lambda each: (len(each.objections), each.rung.overhead_share))
    return (
        f"no setting meets the budget; the closest is {closest.rung.name!r}, which {' and '.join(closest.objections)}: "
        "allow that, or raise the bandwidths"
    )


def _none_within(limit: float, closest: Rung, assessed: tuple[Assessed, ...]) -> str:
    within = [each for each in assessed if each.rung.overhead_share <= limit]
    within.sort(key=lambda each: (each.needs is not None, len(each.objections)))  # first what the user can allow
    hint = f"; {within[0].rung.name!r} would, but it {' and '.join(_obstacles(within[0]))}" if within else ""
    return (
        f"no setting keeps the overhead within {limit:.2%}; the closest is {closest.name!r} "
        f"with {closest.overhead_share:.2%}{hint}"
    )


def _obstacles(assessed: Assessed) -> list[str]:
    lacking = [] if assessed.needs is None else [f"needs {assessed.needs}"]
    return [*assessed.objections, *lacking]
