"""Partial recovery: what is saved for it, and how much it may lose (CPR)."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.policy.arguments import is_finite_number, require, require_count
from holdfast.policy.base import Policy, registered
from holdfast.policy.priority import MFU, Priority
from holdfast.policy.strategy import Full, Strategy, StrategyContext
from holdfast.types import Kind


@registered("pls")
@dataclass(frozen=True, slots=True)
class PLS(Policy):
    """How much of the samples' effect partial recoveries may lose over a whole training.

    Args:
        budget: The share that may be lost, above 0 and at most 1. In a cluster, a partial recovery that would lose more
            is not taken: everyone goes back instead.
        total_samples: Samples of the whole training. None: one pass over the data loader; in a cluster, as many as the
            workers' loaders have.
        samples_per_step: Samples per step, over all ranks. None: the data loader's batch size times the number of
            ranks. In a cluster a step is one worker's; None: as many as workers have seen.
        warn_at: The used share of the budget from which on each recovery warns.
    """

    budget: float
    total_samples: int | None = None
    samples_per_step: int | None = None
    warn_at: float = 0.8

    def __post_init__(self) -> None:
        fits = is_finite_number(self.budget) and 0 < self.budget <= 1
        require(fits, self, "budget", "above 0 and at most 1", self.budget)
        for name in ("total_samples", "samples_per_step"):
            if getattr(self, name) is not None:
                require_count(self, name, getattr(self, name))
        near = is_finite_number(self.warn_at) and 0 < self.warn_at <= 1
        require(near, self, "warn_at", "above 0 and at most 1", self.warn_at)


@registered("partial")
@dataclass(frozen=True, slots=True)
class Partial(Strategy):
    """Checkpoints as ``consistent`` decides and, in between, the rows that ``priority`` selects.

    ``guard.recover()`` restores a lost part of the tables from the newest saved rows; the rest carries on.

    Args:
        priority: Which rows are saved between two checkpoints: ``MFU``, ``SSU`` or ``SCAR``. None: none, so a lost part
            is restored from the last checkpoint (CPR-vanilla).
        consistent: The strategy of the checkpoints themselves; any but another ``Partial``.
        budget: Meters what recoveries lose and warns before the budget is used up. None: not metered.
    """

    priority: Priority | None = MFU()  # noqa: RUF009 - frozen
    consistent: Strategy = Full()  # noqa: RUF009
    budget: PLS | None = None

    def __post_init__(self) -> None:
        known = self.priority is None or isinstance(self.priority, Priority)
        require(known, self, "priority", "SCAR, MFU, SSU or None", self.priority)
        plain = isinstance(self.consistent, Strategy) and not isinstance(self.consistent, Partial)
        require(plain, self, "consistent", "another strategy, such as Full() or Grid()", self.consistent)
        metered = self.budget is None or isinstance(self.budget, PLS)
        require(metered, self, "budget", "a budget such as PLS(0.1), or None", self.budget)

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return self.consistent.decide(context)
