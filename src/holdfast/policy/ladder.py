"""The recovery ladder: by which rungs a cluster makes up for servers that die, and how far it has to climb down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.errors import ConfigurationError
from holdfast.figures import number
from holdfast.policy.arguments import require, require_flag
from holdfast.policy.base import Policy, registered
from holdfast.policy.parity import Parity
from holdfast.policy.partial import PLS, Partial
from holdfast.policy.pls import PlsMeter
from holdfast.policy.priority import MFU, Priority
from holdfast.policy.strategy import Strategy

PARITY, PARTIAL, FULL = "parity", "partial", "full"
"""The rungs: from others' memory, from the newest rows saved, from a checkpoint of all."""

AUTO: Final = "auto"
"""Instead of a ladder: the planner chooses one when the job starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """What is known when rows are lost that no parity gives.

    Args:
        lost_share: Of the tables.
        samples: Trained so far.
        meter: Of lost samples, as the newest checkpoint left it; None where nothing is metered, or the length of the
            training is not known yet.
        saves_are_current: Whether what was saved last belongs to this timeline: not so from a going back until the
            next checkpoint.
    """

    lost_share: float
    samples: int
    meter: PlsMeter | None = None
    saves_are_current: bool = True


@registered("ladder")
@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder(Policy):
    """The rungs by which a ``Cluster`` makes up for servers that die: each only for what those above cannot give.

    The last one is always there: everyone goes back to the newest checkpoint, and nothing is lost but time.

    Args:
        parity: The first rung: other servers' memory gives the rows back, exactly, while training goes on. None:
            without it.
        partial: Whether there is a second one: lost rows go back to the newest ones saved, and everything else keeps
            its progress. Not in synchronous training.
        budget: How much partial recoveries may lose. One that would lose more falls to the last rung. None: nothing is
            metered.
        priority: For partial recovery: which rows are saved between two checkpoints, ``MFU``, ``SSU`` or ``SCAR``.
            None: none.
    """

    parity: Parity | None = None
    partial: bool = False
    budget: PLS | None = None
    priority: Priority | None = MFU()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        protected = self.parity is None or isinstance(self.parity, Parity)
        require(protected, self, "parity", "a parity such as Parity(data=4, parity=1), or None", self.parity)
        require_flag(self, "partial", self.partial)
        metered = self.budget is None or isinstance(self.budget, PLS)
        require(metered, self, "budget", "a budget such as PLS(0.1), or None", self.budget)
        known = self.priority is None or isinstance(self.priority, Priority)
        require(known, self, "priority", "SCAR, MFU, SSU or None", self.priority)
        for name, unused in (("budget", (None,)), ("priority", (None, MFU()))):
            value = getattr(self, name)
            if not self.partial and value not in unused:
                raise ConfigurationError(
                    f"Ladder: {name}={value} is for partial recoveries, and partial is False; pass partial=True, or "
                    f"leave the {name} out"
                )

    @classmethod
    def of(cls, parity: Parity | None, strategy: Strategy | None) -> Ladder:
        """The ladder that a job has whose parity and strategy are given instead.

        Args:
            parity: Its parity, if any.
            strategy: Of its checkpoints; ``Partial`` stands for the second rung.
        """
        if not isinstance(strategy, Partial):
            return cls(parity=parity)
        return cls(parity=parity, partial=True, budget=strategy.budget, priority=strategy.priority)

    @property
    def rungs(self) -> tuple[str, ...]:
        """Their names, from the top."""
        has = {PARITY: self.parity is not None, PARTIAL: self.partial, FULL: True}
        return tuple(name for name, there in has.items() if there)

    def strategy(self, consistent: Strategy) -> Strategy:
        """The strategy of a job's saves.

        Args:
            consistent: That of its checkpoints.
        """
        if not self.partial:
            return consistent
        return Partial(priority=self.priority, consistent=consistent, budget=self.budget)

    def below_parity(self, fall: Fall) -> str:
        """The rung that gives what parity cannot: ``PARTIAL`` while the budget allows it, else ``FULL``.

        Args:
            fall: What is lost.
        """
        if not self.partial or not fall.saves_are_current:
            return FULL
        if fall.meter is None:
            return PARTIAL
        return FULL if fall.meter.failed(fall.samples, lost_share=fall.lost_share).is_over else PARTIAL

    def __str__(self) -> str:
        """In words, for people."""
        words = []
        if self.parity is not None:
            words.append(f"{PARITY} ({self.parity.data} + {self.parity.parity})")
        if self.partial:
            words.append(f"{PARTIAL} (PLS up to {number(self.budget.budget)})" if self.budget else PARTIAL)
        return " → ".join([*words, FULL])
