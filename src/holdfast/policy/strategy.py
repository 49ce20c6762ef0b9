"""What a due checkpoint holds: every row, the rows changed since the baseline, or those changed since the last one.

Check-N-Run, section 4.1. A differential checkpoint is read with its baseline alone but grows until the next baseline;
an incremental one stays small but needs every one before it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from holdfast.policy.arguments import is_finite_number, require
from holdfast.policy.base import Policy, registered
from holdfast.types import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyContext:
    """What was committed since the newest baseline of this timeline, that baseline included.

    Times are from the snapshot to the commit; what was not measured yet is None.
    """

    baseline_exists: bool
    delta_fractions: tuple[float, ...] = ()  # sizes of the deltas after the baseline, each as a fraction of it
    baseline_s: float | None = None
    delta_s: float | None = None
    bytes_above_baseline: int = 0  # that a restore of the newest checkpoint reads
    read_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for fraction in self.delta_fractions:
            fits = is_finite_number(fraction) and fraction >= 0
            require(fits, self, "delta_fractions", "finite numbers of at least 0", self.delta_fractions)


class Strategy(Policy, ABC):
    """Decides the kind of a checkpoint. Without a baseline to stand on, every strategy takes one."""

    __slots__ = ()

    def decide(self, context: StrategyContext) -> Kind:
        """The kind of the checkpoint that is due."""
        return self._on_baseline(context) if context.baseline_exists else Kind.FULL

    @abstractmethod
    def _on_baseline(self, context: StrategyContext) -> Kind:
        """The kind, given that a baseline exists."""


@registered("full")
@dataclass(frozen=True, slots=True)
class Full(Strategy):
    """Every row, every time."""

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return Kind.FULL


@registered("one_shot")
@dataclass(frozen=True, slots=True)
class OneShot(Strategy):
    """One baseline, then the rows changed since it."""

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return Kind.DIFFERENTIAL


@registered("consecutive")
@dataclass(frozen=True, slots=True)
class Consecutive(Strategy):
    """One baseline, then the rows changed since the checkpoint before: least to write, most to keep and to read."""

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return Kind.INCREMENTAL


@registered("intermittent")
@dataclass(frozen=True, slots=True)
class Intermittent(Strategy):
    """The rows changed since the baseline, and a new baseline when history says that it pays (section 4.1.1)."""

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return Kind.FULL if _baseline_pays(context.delta_fractions) else Kind.DIFFERENTIAL


def _baseline_pays(delta_fractions: tuple[float, ...]) -> bool:
    """F_c ≤ I_c: a baseline and a repeat of the past deltas cost no more than going on at the last delta's size.

    The paper leaves out the interval right after a baseline; its formula read literally (S_0 = 1) would take baselines
    only. With no delta to learn from, a delta is taken.
    """
    if not delta_fractions:
        return False
    cost_with_baseline = math.fsum((1.0, *delta_fractions))
    cost_without = (len(delta_fractions) + 1) * delta_fractions[-1]
    return cost_with_baseline <= cost_without
