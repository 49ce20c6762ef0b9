"""How precisely rows are stored (Check-N-Run, sections 4.2 and 5.2). Training itself keeps its own precision.

A restore from a quantized checkpoint moves every row a little. How many restores a job can take before its accuracy
suffers depends on the bits per value, so the bits follow from the expected number of restores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.policy.arguments import is_finite_number, require, require_count, require_duration
from holdfast.policy.base import Policy, registered
from holdfast.policy.study import MEASURED_METHODS, Shown, cheapest
from holdfast.types import BASELINE_BITS, EXACTLY, Stored

BITS = (2, 3, 4, 8)
METHODS = ("default", "published", "asymmetric", "symmetric", "kmeans")

# Restores that cost less than a ten-thousandth of the accuracy, by bits per value (section 5.2.1).
_TOLERATED = {2: 1, 3: 3, 4: 20}
_TOLERATED_AT = 1e-4


class Precision(Policy, ABC):
    """Decides how the rows of each table are stored."""

    __slots__ = ()

    @abstractmethod
    def decide(self, table: str, restores: int) -> Stored:
        """How to store a table.

        Args:
            table: The table's name.
            restores: How often the model has been restored by now.
        """


@registered("exact")
@dataclass(frozen=True, slots=True)
class Exact(Precision):
    """Store every bit."""

    def decide(self, table: str, restores: int) -> Stored:
        return EXACTLY


@registered("bits")
@dataclass(frozen=True, slots=True)
class Bits(Precision):
    """A fixed number of bits per weight value; optimizer slots as precisely as their kind needs.

    Args:
        bits: 2, 3, 4 or 8.
        difference: Store the baseline in 8 bits and changed rows as their difference from it, in ``bits``.
        method: "default" (least squares; plain for 8 bits), "published" (Check-N-Run's greedy search), "asymmetric",
            "symmetric" or "kmeans" (for comparison; not for 8 bits).
    """

    bits: int
    difference: bool = False
    method: str = "default"

    def __post_init__(self) -> None:
        fits = isinstance(self.bits, int) and not isinstance(self.bits, bool) and self.bits in BITS
        require(fits, self, "bits", "2, 3, 4 or 8", self.bits)
        _require_how(self, self.difference, self.method)
        fits = self.bits != 8 or self.method != "kmeans"
        require(
            fits, self, "method", 'other than "kmeans" for 8 bits, which would need 256 centroids per row', self.method
        )

    def decide(self, table: str, restores: int) -> Stored:
        return Stored(bits=self.bits, method=self.method, difference=self.difference)


class _FromFailures(Precision):
    """Derived from the expected number of restores: each failure stops the job, which then restores once."""

    __slots__ = ()

    failure_probability: float
    nodes: int
    expected_hours: float

    @property
    def expected_restores(self) -> float:
        """The expected number of failures."""
        return self.failure_probability * self.nodes * self.expected_hours

    def _require_failures(self) -> None:
        p = self.failure_probability
        require(is_finite_number(p) and 0 <= p <= 1, self, "failure_probability", "between 0 and 1", p)
        require_count(self, "nodes", self.nodes)
        require_duration(self, "expected_hours", self.expected_hours)


@registered("auto")
@dataclass(frozen=True, slots=True, kw_only=True)
class Auto(_FromFailures):
    """The fewest bits that Holdfast's own study shows to cost no more than ``auc_drop_percent`` of the AUC.

    After more restores than the chosen bits are shown to tolerate, the next setting that does takes over, on a new
    baseline; beyond what was measured, rows are stored exactly.

    Args:
        failure_probability: The probability that one node fails within an hour.
        nodes: How many nodes the job runs on.
        expected_hours: How long it runs.
        auc_drop_percent: What all restores together may cost, in percent of the AUC.
        difference: Whether changed rows are stored as differences from a baseline in 8 bits. None: if that takes the
            fewest bits.
        method: "default" or "published", as for ``Bits``; others were not measured.
    """

    failure_probability: float
    nodes: int
    expected_hours: float
    auc_drop_percent: float = 0.01
    difference: bool | None = None
    method: str = "default"

    def __post_init__(self) -> None:
        self._require_failures()
        require_duration(self, "auc_drop_percent", self.auc_drop_percent)
        require(self.difference in (True, False, None), self, "difference", "True, False or None", self.difference)
        measured = f"{' or '.join(MEASURED_METHODS)}; other methods were not measured"
        require(self.method in MEASURED_METHODS, self, "method", measured, self.method)

    @property
    def tolerated_restores(self) -> float:
        """How many restores the chosen bits are shown to tolerate; infinite if rows are exact."""
        return self._shown(0).restores

    def decide(self, table: str, restores: int) -> Stored:
        return self._shown(restores).stored

    def _shown(self, restores: int) -> Shown:
        most = max(self.expected_restores, restores)
        return cheapest(most, self.auc_drop_percent, difference=self.difference, method=self.method)


@registered("paper_table")
@dataclass(frozen=True, slots=True, kw_only=True)
class PaperTable(_FromFailures):
    """Check-N-Run's own table: 2 bits for 1 restore, 3 for 3, 4 for 20; 8, on a new baseline, once there were more.

    The paper trains on billions of samples; on shorter trainings its bits cost more (see ``Auto``).

    Args:
        failure_probability: The probability that one node fails within an hour.
        nodes: How many nodes the job runs on.
        expected_hours: How long it runs.
        accuracy_budget: The share of the accuracy that all restores together may cost. A value other than the paper's
            0.0001 scales the numbers of its table.
        method: As for ``Bits``.
    """

    failure_probability: float
    nodes: int
    expected_hours: float
    accuracy_budget: float = _TOLERATED_AT
    method: str = "default"

    def __post_init__(self) -> None:
        self._require_failures()
        require_duration(self, "accuracy_budget", self.accuracy_budget)
        _require_method(self, self.method)

    @property
    def tolerated_restores(self) -> float:
        """How many restores the chosen bits tolerate; infinite for 8."""
        return self._choice()[1]

    def decide(self, table: str, restores: int) -> Stored:
        bits, tolerated = self._choice()
        return Stored(bits=bits if restores <= tolerated else BASELINE_BITS, method=self.method)

    def _choice(self) -> tuple[int, float]:
        """The bits for the expected restores, and how many they tolerate."""
        for bits, restores in _TOLERATED.items():
            tolerated = math.floor(restores * self.accuracy_budget / _TOLERATED_AT + 1e-9)
            if self.expected_restores <= tolerated:
                return bits, tolerated
        return BASELINE_BITS, math.inf


@registered("per_table")
@dataclass(frozen=True, slots=True)
class PerTable(Precision):
    """One precision for most tables, and others for named tables: ``PerTable(Bits(2), {"user": Exact()})``.

    Args:
        default: For all tables not named in ``tables``.
        tables: Precisions by table name.
    """

    default: Precision
    tables: Mapping[str, Precision] | tuple[tuple[str, Precision], ...]

    def __post_init__(self) -> None:
        pairs = self.tables.items() if isinstance(self.tables, Mapping) else self.tables
        object.__setattr__(self, "tables", tuple(pairs))
        for name, precision in (("default", self.default), *self.tables):
            fits = isinstance(precision, Precision) and not isinstance(precision, PerTable)
            require(fits, self, str(name), "a precision such as Bits(4)", precision)

    @property
    def names(self) -> tuple[str, ...]:
        """The tables with their own precision."""
        return tuple(dict(self.tables))

    def decide(self, table: str, restores: int) -> Stored:
        return dict(self.tables).get(table, self.default).decide(table, restores)


def _require_how(owner: object, difference: object, method: object) -> None:
    require(isinstance(difference, bool), owner, "difference", "True or False", difference)
    _require_method(owner, method)


def _require_method(owner: object, method: object) -> None:
    require(method in METHODS, owner, "method", f"one of {', '.join(METHODS)}", method)
