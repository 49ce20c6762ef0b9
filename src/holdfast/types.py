"""Values that cross module boundaries. Frozen, slotted, keyword-only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce

BASELINE_BITS = 8  # of a baseline that differences refer to
_EXACT_FIDELITY = 64


KEYED = "row."  # begins the name of a column that a keyed table keeps itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """One row-aligned tensor of a table: its weight, an optimizer slot, or what a keyed table keeps for each row.

    Args:
        name: ``weight``, the slot's name in the optimizer's state, or ``row.`` and the keyed table's name for it.
        dtype: A safetensors code such as ``F32``.
        row_shape: The shape of one row; ``()`` for one number.
    """

    name: str
    dtype: str
    row_shape: tuple[int, ...]

    @property
    def is_keyed(self) -> bool:
        """Whether a keyed table keeps it: its keys, and what it decides on evictions by. Always stored exactly."""
        return self.name.startswith(KEYED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Some of the values of every row of a table, stored as a table of its own: what column-wise sharding leaves.

    Args:
        table: The name of the whole table.
        first: The first of the values.
        width: How many values a row of the whole table has.
    """

    table: str
    first: int
    width: int

    def name(self, values: int) -> str:
        """What a strip of so many values is called."""
        return f"{self.table}[{self.first}:{self.first + values}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table's stored shape.

    Args:
        name: Its name in the model, or the one passed with ``tables=``; of a strip, that with the range of its values.
        rows: The number of rows.
        columns: Every column of its row records, the weight first.
        strip: Which values of a wider table's rows these are. None: it is a whole table.
    """

    name: str
    rows: int
    columns: tuple[ColumnSpec, ...]
    strip: Strip | None = None

    @property
    def table(self) -> str:
        """The name of the whole table."""
        return self.name if self.strip is None else self.strip.table

    @property
    def first_value(self) -> int:
        """Where in the whole table's rows its values begin."""
        return 0 if self.strip is None else self.strip.first

    @property
    def weight(self) -> ColumnSpec:
        """The column of its weights."""
        return self.columns[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of its weights, as a tensor."""
        return (self.rows, *self.weight.row_shape)

    def column(self, name: str) -> ColumnSpec:
        """The column of that name."""
        return next(column for column in self.columns if column.name == name)

    @property
    def slots(self) -> tuple[ColumnSpec, ...]:
        """The columns beside the weight: those of the optimizer, and of a keyed table."""
        return self.columns[1:]

    @property
    def is_keyed(self) -> bool:
        """Whether its rows are found by keys."""
        return any(column.is_keyed for column in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSizes:
    """The sizes of the deltas since a baseline, as shares of it: the last two, and the sum of the others."""

    count: int = 0
    total: float = 0.0
    previous: float = 0.0  # the last but one
    last: float = 0.0

    @classmethod
    def of(cls, *shares: float) -> DeltaSizes:
        """From the sizes of consecutive deltas."""
        return reduce(cls.with_next, shares, cls())

    def with_next(self, share: float) -> DeltaSizes:
        """With one more delta."""
        return DeltaSizes(count=self.count + 1, total=self.total + share, previous=self.last, last=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How the rows of a table are stored: ``bits`` per value of a weight; None: exactly.

    With ``difference`` the bits encode a row's difference from its baseline, and the baseline has 8 bits.
    """

    bits: int | None
    method: str = "default"
    difference: bool = False

    @property
    def fidelity(self) -> int:
        """Higher means closer to the original row; bits of a difference count twice."""
        if self.bits is None:
            return _EXACT_FIDELITY
        return min(2 * self.bits, BASELINE_BITS) if self.difference else self.bits

    def __str__(self) -> str:
        if self.bits is None:
            return "exact"
        return f"{self.bits} bits" + (" of difference" if self.difference else "")


EXACTLY = Stored(bits=None)


class UpdateMethod(Enum):
    """How a gradient changes a row and its slots; the formulas stand in the design note on the cluster.

    Attributes:
        SGD: Against the gradient.
        MOMENTUM: SGD with a running sum of gradients.
        NESTEROV: SGD with the same sum, looking one step ahead.
        ADAGRAD: By the sum of squared gradients of each value.
        ROWWISE_ADAGRAD: By the sum of mean squared gradients of the row.
        SPARSE_ADAM: Adam as ``torch.optim.SparseAdam`` has it, by the row's own count of updates.
        ADAM: As ``torch.optim.Adam`` has it, by the row's own count of updates.
    """

    SGD = "sgd"
    MOMENTUM = "momentum"
    NESTEROV = "nesterov"
    ADAGRAD = "adagrad"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    SPARSE_ADAM = "sparse_adam"
    ADAM = "adam"


class StartKind(Enum):
    """What rows without an update hold.

    Attributes:
        UNIFORM: Drawn evenly between two numbers.
        NORMAL: Drawn from a normal distribution.
        CONSTANT: One number everywhere.
    """

    UNIFORM = "uniform"
    NORMAL = "normal"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How the rows of a table begin.

    Args:
        kind: What they hold.
        first: The least value, the mean, or the only value.
        second: The greatest value, or the standard deviation.
    """

    kind: StartKind
    first: float
    second: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """A slot before the width of its table is known.

    Args:
        name: As in the state of the optimizer of ``torch.optim`` that has it.
        single: One number for each row, instead of one for each value of the row.
        initial: What rows without an update hold.
    """

    name: str
    single: bool = False
    initial: float = 0.0

    def column(self, dim: int) -> ColumnSpec:
        """Of a table whose rows have ``dim`` values."""
        return ColumnSpec(name=self.name, dtype="F32", row_shape=() if self.single else (dim,))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """What servers compute for a row that has a gradient; the learning rate comes with each push.

    Args:
        method: Which formula.
        slots: What it keeps of each row, in the order of the formula.
        momentum: Of ``MOMENTUM`` and ``NESTEROV``.
        beta1: Of the methods of Adam: how much of the mean gradient is kept.
        beta2: The same of the mean squared gradient.
        eps: Added to a denominator.
    """

    method: UpdateMethod
    slots: tuple[SlotSpec, ...] = ()
    momentum: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0


class Since(Enum):
    """Where a delta starts."""

    BASELINE = "baseline"
    LAST = "last"


class Kind(Enum):
    """What a checkpoint holds and what it depends on.

    Attributes:
        FULL: Every row; depends on nothing: a baseline.
        DIFFERENTIAL: Rows changed since the baseline; depends on the baseline.
        INCREMENTAL: Rows changed since the parent; depends on the parent.
        PRIORITY: Rows saved between two checkpoints; not a checkpoint, and nothing depends on it.
    """

    FULL = "full"
    DIFFERENTIAL = "differential"
    INCREMENTAL = "incremental"
    PRIORITY = "priority"


class Doubt(Enum):
    """Why a checkpoint may be damaged.

    Attributes:
        SUSPECT: It could not be restored while an older one could; kept until it is verified.
        CONDEMNED: Verification found it damaged.
    """

    SUSPECT = "suspect"
    CONDEMNED = "condemned"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A committed checkpoint, as listed in the run.

    Args:
        id: Unique in the run; also the prefix of its objects.
        step: The optimizer steps behind its state.
        term: The term of the trainer that saved it.
        kind: What it holds: ``FULL``, ``DIFFERENTIAL`` or ``INCREMENTAL``.
        parent: The checkpoint that training came from.
        base: The checkpoint that its rows depend on. None: it is a baseline.
        created_s: When it was saved, in seconds since 1970, by the writer's clock.
        size_bytes: The bytes it wrote.
        rows_written: The table rows it wrote.
        full_bytes: What a full checkpoint would have written.
        tag: The name passed to ``save()``.
        metrics: The metrics from ``step()`` and ``annotate()``.
        abandoned: Whether it is on a timeline that was left by going back.
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
        """Anything unusual about it, in brackets; empty for a healthy checkpoint of the live timeline."""
        words = [*(["abandoned"] if self.abandoned else []), *([self.doubt.value] if self.doubt else [])]
        return f"({', '.join(words)})" if words else ""
