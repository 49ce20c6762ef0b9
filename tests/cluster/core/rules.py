"""Rules of a protocol, each with a mutant that lacks it, and how it is shown that the rule matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.cluster.core.simulation import Simulation
from tests.cluster.core.world import Cores


@dataclass(frozen=True)
class Rule:
    """One of them."""

    cores: Cores  # that lack it
    traits: Mapping[str, Any]  # of jobs in which it matters
    is_rare: bool = False  # one schedule in some hundreds shows it


@dataclass(frozen=True, kw_only=True)
class Rulebook:
    """All of a protocol's."""

    simulation: type[Simulation]
    rules: Mapping[str, Rule]
    enough: int  # schedules in which a rule must be missed
    patience: int  # things that happen before a mutant is taken to be stuck

    def is_missed(self, name: str, seed: int) -> bool:
        """Whether a schedule goes wrong without a rule. With it, it must not."""
        rule = self.rules[name]
        simulation = self.simulation(seed, rule.cores, **rule.traits)
        simulation.PATIENCE = self.patience
        try:
            simulation.run()
        except (AssertionError, LookupError):
            self.simulation(seed, **rule.traits).run()
            return True
        return False

    def is_ever_missed(self, name: str) -> bool:
        """Whether one of enough schedules shows that a rule matters."""
        return any(self.is_missed(name, seed) for seed in range(self.enough))
