"""The grid: increments arranged by the checkpoint that wrote a row and by the one that replaced it (IncrCP, section 4).

A save writes what an increment would. Afterwards, in the background, the agent splits older increments by what became
of their rows, so that any checkpoint is read without the rows that others replaced. A rule says when that is worth it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from holdfast.policy.arguments import is_finite_number, require, require_count
from holdfast.policy.base import Policy, registered
from holdfast.policy.retention import KeepAll, Retention, TimeToLive
from holdfast.policy.strategy import Intermittent, Strategy, StrategyContext
from holdfast.types import Kind

READ_OVER_WRITE = 0.5  # what reading a byte back takes, beside making one durable


class Rule(Policy, ABC):
    """Decides whether a bundle's records are worth rearranging, from how much of it was replaced."""

    __slots__ = ()

    @abstractmethod
    def is_due(self, dead: int, alive: int) -> bool:
        """Whether to rearrange a bundle of records.

        Args:
            dead: Bytes that were alive and that later checkpoints have replaced.
            alive: Bytes that were alive when it was last rearranged.
        """


@registered("dead_share")
@dataclass(frozen=True, slots=True)
class DeadShare(Rule):
    """When a share of what was alive at its last rearrangement has been replaced, by however many checkpoints.

    That bounds both costs: a restore of the newest checkpoint reads at most this share in vain, and a record is
    rewritten only after that share of its bundle was replaced.

    Args:
        share: Between 0 and 1. Lower values make restores read less in vain and the agent write more.
    """

    share: float = 0.25

    def __post_init__(self) -> None:
        fits = is_finite_number(self.share) and 0 <= self.share <= 1
        require(fits, self, "share", "between 0 and 1", self.share)

    def is_due(self, dead: int, alive: int) -> bool:
        return dead > 0 and dead >= self.share * alive


@registered("pairs")
@dataclass(frozen=True, slots=True)
class Pairs(Rule):
    """IncrCP's rule (section 4.3): when one new checkpoint replaces more than a share ``threshold`` of a bundle.

    What one checkpoint alone replaces of it and does not reach the threshold is never looked at again. Three checks
    come in turn, each of which may be left out.

    Args:
        threshold: The share, between 0 and 1.
        check_range: First ask whether the row ids of both overlap at all.
        check_membership: Then count, by the index in memory, how many rows of the new one are alive in the old one.
        check_actual: Then count them by the ids as they are stored.
    """

    threshold: float = 0.02
    check_range: bool = True
    check_membership: bool = True
    check_actual: bool = True

    def __post_init__(self) -> None:
        fits = is_finite_number(self.threshold) and 0 <= self.threshold <= 1
        require(fits, self, "threshold", "between 0 and 1", self.threshold)
        for name in ("check_range", "check_membership", "check_actual"):
            require(isinstance(getattr(self, name), bool), self, name, "True or False", getattr(self, name))

    def is_due(self, dead: int, alive: int) -> bool:
        return dead > self.threshold * alive


@registered("grid")
@dataclass(frozen=True, slots=True)
class Grid(Strategy):
    """One baseline, then increments in a grid: as small as consecutive ones, as fast to restore as differential ones.

    Args:
        rule: When a bundle is worth rearranging: ``DeadShare`` or ``Pairs``.
        reset: Take a new baseline when writing it takes less than writing an increment and reading what has gathered
            above the old one (section 4.5).
        concatenate: Put what a rearrangement splits off into one bundle (section 4.4).
        max_postponed: How many saves in a row may go before a rearrangement that is due.
    """

    rule: Rule = DeadShare()
    reset: bool = True
    concatenate: bool = True
    max_postponed: int = 4

    def __post_init__(self) -> None:
        require(isinstance(self.rule, Rule), self, "rule", "a rule such as DeadShare(0.25)", self.rule)
        for name in ("reset", "concatenate"):
            require(isinstance(getattr(self, name), bool), self, name, "True or False", getattr(self, name))
        require_count(self, "max_postponed", self.max_postponed)

    @property
    def counts_changes(self) -> bool:
        return self.reset

    def _on_baseline(self, context: StrategyContext) -> Kind:
        return Kind.FULL if self.reset and _reset_pays(context) else Kind.INCREMENTAL


def default_strategy(retention: Retention) -> Strategy:
    """What suits a retention policy: the grid where history is kept, else what keeps the least for the newest few."""
    return Grid() if isinstance(retention, KeepAll | TimeToLive) else Intermittent()


def _reset_pays(context: StrategyContext) -> bool:
    """T_base < T_incre (section 4.5), were training to fail right after this checkpoint.

    Either way the baseline is read back, so what is left to compare is writing all rows with writing those of the
    increment and reading those changed since the baseline. The paper measures these times; on a busy machine one slow
    save then looks like a reason, and the baseline it brings is slow, too. Here sizes decide, which are the same in
    every run, and what a byte costs is a constant.
    """
    increment, changed = context.increment_share, context.changed_share
    if not context.deltas.count or increment is None or changed is None:
        return False  # nothing has gathered above the newest baseline
    return increment + READ_OVER_WRITE * changed > 1
