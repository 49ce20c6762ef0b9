"""From the strips of a stored table to what a rank holds of it: any division restores from any other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import torch
from torch import Tensor

from holdfast.checkpoint.read.strips import WholeTable, is_per_value, values_of
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.rows import WantedRows
from holdfast.checkpoint.restore.tensors import ColumnWriter, Targets
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError
from holdfast.format.dtypes import torch_dtype
from holdfast.types import ColumnSpec, TableSpec


class Slots(Enum):
    """What becomes of slots with one entry per row in each strip, where the strips changed.

    Attributes:
        EXACT: They are refused: no exact value exists.
        MEAN: A strip gets the mean of those it overlaps, weighted by the values they share.
    """

    EXACT = "exact"
    MEAN = "mean"


def as_slots(value: str) -> Slots:
    """The policy of that name."""
    try:
        return Slots(value)
    except ValueError:
        raise ConfigurationError(f"slots= is {value!r}; pass 'exact' or 'mean'") from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mean:
    """A slot that is the mean of several, once they are read."""

    target: Tensor
    parts: list[tuple[int, Tensor]] = field(default_factory=list)  # how much each counts, and what it is

    def write(self) -> None:
        """Compute it."""
        total = sum(weight for weight, _ in self.parts)
        found = torch.zeros_like(self.target, dtype=torch.float64)
        for weight, part in self.parts:
            found += part.to(torch.float64) * (weight / total)
        self.target.copy_(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placed:
    """Where the rows of a stored table go."""

    wanted: list[WantedRows]
    means: list[Mean]
    exact: TableSpec | None  # the stored table that now is held here, column by column; None where none is


def held_values(table: Table) -> range:
    """Which values of the whole table's rows are held here; for rows that are no vectors, no values."""
    count = table.row_shape[0] if len(table.row_shape) == 1 else 0
    first = 0 if table.extent is None else table.extent.value
    return range(first, first + count)


def held_columns(whole: WholeTable, table: Table) -> tuple[ColumnSpec, ...]:
    """The slots of a stored table, in the shape that they have here."""
    shape = table.row_shape
    return tuple(
        replace(slot, row_shape=shape) if is_per_value(whole.spec, slot) else slot for slot in whole.spec.slots
    )


def split_problem(whole: WholeTable, table: Table) -> str | None:
    """Why slots with one entry per row cannot be restored exactly."""
    values = held_values(table)
    slots = [slot.name for slot in whole.strips[0].spec.slots if not is_per_value(whole.strips[0].spec, slot)]
    if not slots or any(values_of(plan.spec) == values for plan in whole.strips):
        return None
    stored = ", ".join(f"{each.start} to {each.stop - 1}" for each in (values_of(plan.spec) for plan in whole.strips))
    return (
        f"slot {slots[0]!r} of table {whole.spec.name!r} has one entry per row and column shard: the checkpoint holds "
        f"those of columns {stored}, and this rank needs that of columns {values.start} to {values.stop - 1}, which "
        "cannot be computed from them exactly. Keep the column split of the plan, or pass slots='mean' to take the "
        "mean of the shards' entries"
    )


def place_rows(whole: WholeTable, table: Table, targets: Targets) -> Placed:
    """What to read of a stored table, and into which of the tensors held here."""
    rows = range(table.origin, table.origin + table.rows)
    wanted: list[WantedRows] = []
    means: dict[str, Mean] = {}
    exact: TableSpec | None = None
    for plan in whole.strips if len(rows) else ():
        columns = dict(_writers(plan, table, targets, means))
        if columns:
            wanted.append(WantedRows(plan=plan, columns=columns, rows=rows))
    for plan in whole.strips:
        if values_of(plan.spec) == held_values(table) and all(each.name in targets for each in plan.spec.columns):
            exact = plan.spec
    return Placed(wanted=wanted, means=list(means.values()), exact=exact)


def _writers(
    plan: TablePlan, table: Table, targets: Targets, means: dict[str, Mean]
) -> Iterator[tuple[str, ColumnWriter]]:
    """Where the columns of a strip go, those that have something to do with what is held here."""
    stored, held = values_of(plan.spec), held_values(table)
    for column in plan.spec.columns:
        target = targets.get(column.name)
        if target is None:
            continue
        if stored == held:
            yield column.name, _writer(target, column, table)
            continue
        shared = range(max(stored.start, held.start), min(stored.stop, held.stop))
        if not shared:
            continue
        if is_per_value(plan.spec, column):
            here = target[:, shared.start - held.start : shared.stop - held.start]
            taken = None if shared == stored else slice(shared.start - stored.start, shared.stop - stored.start)
            yield column.name, _writer(here, column, table, taken)
        else:
            part = torch.zeros((table.rows, *column.row_shape), dtype=torch_dtype(column.dtype))
            means.setdefault(column.name, Mean(target=target)).parts.append((len(shared), part))
            yield column.name, _writer(part, column, table)


def _writer(target: Tensor, column: ColumnSpec, table: Table, values: slice | None = None) -> ColumnWriter:
    return ColumnWriter(
        target,
        column.dtype,
        column.row_shape,
        first=table.origin,
        values=values,
        is_part=table.extent is not None,
    )


def by_whole_name(tables: Mapping[str, Table]) -> dict[str, list[Table]]:
    """What is held here of each table."""
    found: dict[str, list[Table]] = {}
    for table in tables.values():
        found.setdefault(table.whole_name, []).append(table)
    return found
