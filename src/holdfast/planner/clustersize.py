"""How often a larger cluster fails (CPR, section 6.6)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from holdfast.errors import ConfigurationError
from holdfast.policy.arguments import is_finite_number, require, require_count, require_duration


class MtbfOverNodes(ABC):
    """The mean time between failures of a job, by how many nodes it runs on."""

    __slots__ = ()

    def mtbf_s(self, nodes: int) -> float:
        """The job's MTBF on this many nodes."""
        require_count(self, "nodes", nodes)
        return self._mtbf_s(nodes)

    @abstractmethod
    def _mtbf_s(self, nodes: int) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearMtbf(MtbfOverNodes):
    """A straight line, as CPR observed on its cluster: right within the sizes it was measured on."""

    intercept_s: float
    slope_s_per_node: float

    def __post_init__(self) -> None:
        require_duration(self, "intercept_s", self.intercept_s)
        fits = is_finite_number(self.slope_s_per_node)
        require(fits, self, "slope_s_per_node", "a finite number", self.slope_s_per_node)

    @classmethod
    def fit(cls, nodes: Sequence[int], mtbf_s: Sequence[float]) -> Self:
        """The line nearest to what was measured on clusters of several sizes."""
        if len(nodes) != len(mtbf_s) or len(set(nodes)) < 2:
            raise ConfigurationError(
                f"LinearMtbf: {len(nodes)} sizes and {len(mtbf_s)} MTBFs; a line needs at least two of each"
            )
        if min(nodes) < 1 or not all(is_finite_number(time_s) and time_s > 0 for time_s in mtbf_s):
            raise ConfigurationError(f"LinearMtbf: sizes are at least 1 and MTBFs above 0, got {nodes} and {mtbf_s}")
        slope, intercept = np.polyfit(np.asarray(nodes, dtype=np.float64), np.asarray(mtbf_s), 1)
        return cls(intercept_s=float(intercept), slope_s_per_node=float(slope))

    def _mtbf_s(self, nodes: int) -> float:
        mtbf_s = self.intercept_s + self.slope_s_per_node * nodes
        if mtbf_s <= 0:
            last = math.ceil(-self.intercept_s / self.slope_s_per_node) - 1
            raise ConfigurationError(
                f"LinearMtbf: the line ends at {last} nodes and says nothing about {nodes}; use IndependentNodes there"
            )
        return mtbf_s


@dataclass(frozen=True, slots=True, kw_only=True)
class IndependentNodes(MtbfOverNodes):
    """Each node fails with a probability per period, whatever the others do: MTBF = period / (1 - (1 - p)^n)."""

    probability: float
    period_s: float = 3600.0

    def __post_init__(self) -> None:
        fits = is_finite_number(self.probability) and 0 < self.probability < 1
        require(fits, self, "probability", "between 0 and 1", self.probability)
        require_duration(self, "period_s", self.period_s)

    @classmethod
    def through(cls, nodes: int, mtbf_s: float, *, period_s: float = 3600.0) -> Self:
        """The probability that explains the MTBF of one cluster."""
        if nodes < 1 or not 0 < period_s < mtbf_s < math.inf:
            raise ConfigurationError(
                f"IndependentNodes: an MTBF of {mtbf_s:g} s on {nodes} nodes needs at least one node and a "
                f"period above 0 and below the MTBF, not {period_s:g} s"
            )
        return cls(probability=-math.expm1(math.log1p(-period_s / mtbf_s) / nodes), period_s=period_s)

    def _mtbf_s(self, nodes: int) -> float:
        return self.period_s / -math.expm1(nodes * math.log1p(-self.probability))
