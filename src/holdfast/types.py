"""Values that cross module borders. Frozen, slotted, keyword-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce

BASELINE_BITS = 8  # of a baseline that differences refer to
_EXACT_FIDELITY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """One row-aligned tensor of a table: its weight or an optimizer slot.

    Args:
        name: ``weight``, or the slot's name in the optimizer's state.
        dtype: A safetensors code such as ``F32``.
        row_shape: The shape of one row; ``()`` for one number.
    """

    name: str
    dtype: str
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table's shape as it is stored.

    Args:
        name: Its name in the model, or the one given with ``tables=``.
        rows: How many it has.
        columns: Every column of its row records, the weight first.
    """

    name: str
    rows: int
    columns: tuple[ColumnSpec, ...]

    @property
    def slots(self) -> tuple[ColumnSpec, ...]:
        """The optimizer's columns."""
        return self.columns[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """How large the deltas since a baseline are, each as a share of it; of all but the last two, their sum alone."""

    count: int = 0
    total: float = 0.0
    previous: float = 0.0  # the last but one
    last: float = 0.0

    @classmethod
    def of(cls, *shares: float) -> DeltaSizes:
        """Those of deltas one after another."""
        return reduce(cls.with_next, shares, cls())

    def with_next(self, share: float) -> DeltaSizes:
        """With one more."""
        return DeltaSizes(count=self.count + 1, total=self.total + share, previous=self.last, last=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How the rows of a table are stored: ``bits`` per value of a weight; None: as they are.

    With ``difference`` those bits hold what a row differs by from its baseline, and the baseline has 8.
    """

    bits: int | None
    method: str = "default"
    difference: bool = False

    @property
    def fidelity(self) -> int:
        """Larger for what is closer to the row; bits of difference count twice."""
        if self.bits is None:
            return _EXACT_FIDELITY
        return min(2 * self.bits, BASELINE_BITS) if self.difference else self.bits

    def __str__(self) -> str:
        if self.bits is None:
            return "exact"
        return f"{self.bits} bits" + (" of difference" if self.difference else "")


EXACTLY = Stored(bits=None)


class Since(Enum):
    """Where a delta starts."""

    BASELINE = "baseline"
    LAST = "last"


class Kind(Enum):
    """What a checkpoint holds and what it stands on.

    Attributes:
        FULL: Every row; stands on nothing: a baseline.
        DIFFERENTIAL: Rows changed since the baseline; stands on the baseline.
        INCREMENTAL: Rows changed since the parent; stands on the parent.
        PRIORITY: Rows saved first, between two checkpoints; no checkpoint, and nothing stands on it.
    """

    FULL = "full"
    DIFFERENTIAL = "differential"
    INCREMENTAL = "incremental"
    PRIORITY = "priority"


class Doubt(Enum):
    """Why a checkpoint may not be what it was.

    Attributes:
        SUSPECT: It could not be restored while an older one could; kept until it is verified.
        CONDEMNED: It was verified, and is damaged.
    """

    SUSPECT = "suspect"
    CONDEMNED = "condemned"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One committed checkpoint as the run lists it.

    Args:
        id: Unique in the run; also the prefix of its objects.
        step: The optimizer steps behind its state.
        term: Of the trainer that saved it.
        kind: What it holds: ``FULL``, ``DIFFERENTIAL`` or ``INCREMENTAL``.
        parent: The checkpoint that training came from.
        base: The checkpoint that its rows stand on. None: it is a baseline.
        created_s: When it was saved, in seconds since 1970, by the writer's clock.
        size_bytes: Everything that it wrote.
        rows_written: Table rows that it wrote.
        full_bytes: What a full checkpoint would have written.
        tag: The name that ``save()`` gave it.
        metrics: What ``step()`` and ``annotate()`` said of it.
        abandoned: It is on a timeline that was left by going back.
        stall_s: How long training waited for its snapshot. None: not known.
        duration_s: From the beginning of its snapshot until it was committed. None: not known.
        doubt: Whether it is suspect or condemned. None: neither.
    """

    id: str
    step: int
    term: int
    kind: Kind
    parent: str | None
    base: str | None
    created_s: float
    size_bytes: int
    rows_written: int
    full_bytes: int
    tag: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    abandoned: bool = False
    stall_s: float | None = None
    duration_s: float | None = None
    doubt: Doubt | None = None

    @property
    def standing(self) -> str:
        """What sets it apart, in brackets; empty for a checkpoint of the live timeline that nobody doubts."""
        words = [*(["abandoned"] if self.abandoned else []), *([self.doubt.value] if self.doubt else [])]
        return f"({', '.join(words)})" if words else ""
