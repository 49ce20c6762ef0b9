"""What a due checkpoint holds: every row, the rows changed since the baseline, or those changed since the last one.

Check-N-Run, section 4.1. A differential checkpoint needs only its baseline but grows until the next baseline; an
incremental one stays small but needs every one before it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from holdfast.policy.arguments import is_finite_number, require
from holdfast.policy.base import Policy, registered
from holdfast.types import DeltaSizes, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyContext:
    """What was committed since the newest baseline of this timeline, and what changed since.

    Only sizes, as shares of a baseline, and no times, so the same training makes the same decisions on any machine,
    however busy it is.
    """

    baseline_exists: bool
    deltas: DeltaSizes = field(default_factory=DeltaSizes)  # after the baseline
    increment_share: float | None = None  # rows changed since the last checkpoint; None: they were not counted
    changed_share: float | None = None  # rows changed since the baseline: what a restore would read on top of it

    def __post_init__(self) -> None:
        for name in ("increment_share", "changed_share"):
            share = getattr(self, name)
            fits = share is None or (is_finite_number(share) and share >= 0)
            require(fits, self, name, "None or a finite number of at least 0", share)
        sizes = (self.deltas.total, self.deltas.previous, self.deltas.last)
        fits = all(is_finite_number(size) and size >= 0 for size in sizes)
        require(fits, self, "deltas", "finite numbers of at least 0", self.deltas)


class Strategy(Policy, ABC):
    """Decides the kind of a checkpoint. Without a baseline, every strategy takes one first."""

    __slots__ = ()

    @property
    def counts_changes(self) -> bool:
        """Whether it decides from the shares of changed rows; counting them costs a pass over every table."""
        return False

    def decide(self, context: StrategyContext) -> Kind:
        """The kind of the checkpoint that is due.

        Args:
            context: What was committed since the newest baseline, and what changed since.
        """
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
    """One baseline, then the rows changed since the previous checkpoint: least to write, most to keep and read."""

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return Kind.INCREMENTAL


@registered("intermittent")
@dataclass(frozen=True, slots=True)
class Intermittent(Strategy):
    """The rows changed since the baseline, and a new baseline when the history shows it pays off (section 4.1.1).

    Args:
        least_gain: Take a baseline as soon as continuing could lower the average size of a checkpoint by no more than
            this share: near the optimum the average hardly changes, while every delta makes the store hold more. None:
            the paper's rule, which looks at the last delta only and so triggers late.
    """

    least_gain: float | None = None

    def __post_init__(self) -> None:
        fits = self.least_gain is None or (is_finite_number(self.least_gain) and 0 <= self.least_gain < 1)
        require(fits, self, "least_gain", "None or at least 0 and below 1", self.least_gain)

    def _on_baseline(self, context: StrategyContext) -> Kind:
        deltas = context.deltas
        if self.least_gain is None or deltas.count < 2:  # one delta says nothing of growth
            return Kind.FULL if _baseline_pays(deltas) else Kind.DIFFERENTIAL
        return Kind.FULL if _gains_less(deltas, self.least_gain) else Kind.DIFFERENTIAL


def _baseline_pays(deltas: DeltaSizes) -> bool:
    """F_c ≤ I_c: a baseline and a repeat of the past deltas cost no more than continuing at the last delta's size.

    The paper leaves out the interval right after a baseline; its formula read literally (S_0 = 1) would take baselines
    only. With no delta to learn from, a delta is taken.
    """
    return deltas.count > 0 and 1 + deltas.total <= (deltas.count + 1) * deltas.last


def _gains_less(deltas: DeltaSizes, least_gain: float) -> bool:
    """Whether the average so far is within ``least_gain`` of the best that continuing could achieve."""
    average = (1 + deltas.total) / (deltas.count + 1)
    return _best_average(deltas) >= (1 - least_gain) * average


def _best_average(deltas: DeltaSizes) -> float:
    """The lowest average size up to any future checkpoint, if deltas keep growing as the last one did.

    With x checkpoints it is growth·x/2 + surplus/x and a constant. Deltas grow ever more slowly, so it is too high.
    """
    last, growth = deltas.last, max(0.0, deltas.last - deltas.previous)
    total, count = 1 + deltas.total, deltas.count + 1
    surplus = total - count * last + growth * count * (count - 1) / 2
    if 2 * surplus <= growth * count**2:
        return total / count  # it only rises from here
    return last - growth * (count - 0.5) + math.sqrt(2 * surplus * growth)
