"""Tables as a model has them, whatever strips a checkpoint stores them in.

A rank that holds some values of each row of a table stores them as a table of its own, a strip. Everything below works
on stored tables; whoever needs whole ones asks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.types import ColumnSpec, TableSpec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WholeTable:
    """A table of a checkpoint, and where its strips are read from, in the order of their values; mostly one."""

    spec: TableSpec  # of a column that has one entry per row in each strip: as in the first strip
    strips: tuple[TablePlan, ...]

    @property
    def is_single(self) -> bool:
        """Whether it is stored in one piece."""
        return len(self.strips) == 1

    @property
    def split_slots(self) -> tuple[str, ...]:
        """Slots that have an entry of their own in each strip, where there are several."""
        first = self.strips[0].spec
        return () if self.is_single else tuple(slot.name for slot in first.slots if not is_per_value(first, slot))


def is_per_value(spec: TableSpec, column: ColumnSpec) -> bool:
    """Whether a column has an entry for each value of a row, and not one for the row as a whole."""
    return column.row_shape == spec.weight.row_shape


def values_of(spec: TableSpec) -> range:
    """Which values of the whole table's rows a stored table holds; for rows that are no vectors, no values."""
    count = spec.weight.row_shape[0] if len(spec.weight.row_shape) == 1 else 0
    return range(spec.first_value, spec.first_value + count)


def join_strips(plans: Mapping[str, TablePlan]) -> dict[str, WholeTable]:
    """The plans of stored tables by whole table."""
    found: dict[str, list[TablePlan]] = {}
    for plan in plans.values():
        found.setdefault(plan.spec.table, []).append(plan)
    return {name: _join(sorted(strips, key=lambda plan: plan.spec.first_value)) for name, strips in found.items()}


def whole_specs(stored: Iterable[TableSpec]) -> dict[str, TableSpec]:
    """The same for shapes alone."""
    found: dict[str, list[TableSpec]] = {}
    for spec in stored:
        found.setdefault(spec.table, []).append(spec)
    return {name: joined(sorted(strips, key=lambda spec: spec.first_value)) for name, strips in found.items()}


def place_in(whole: T, spec: TableSpec) -> T:
    """The part of a whole table's column, an array or a tensor, that a strip's values go to."""
    if spec.strip is None:
        return whole
    values = values_of(spec)
    found: T = whole[:, values.start : values.stop]  # type: ignore[index]
    return found


def _join(strips: list[TablePlan]) -> WholeTable:
    return WholeTable(spec=joined([plan.spec for plan in strips]), strips=tuple(strips))


def joined(strips: list[TableSpec]) -> TableSpec:
    """The shape of the table that these strips, in their order, make up. Raises ValueError unless they do."""
    first = strips[0]
    if first.strip is None and len(strips) == 1:
        return first
    done = 0
    for spec in strips:
        if spec.strip is None or spec.first_value != done or not _alike(spec, first):
            raise ValueError(f"{spec.name} does not belong with the other strips of table {first.table}")
        done += len(values_of(spec))
    if first.strip is None or done != first.strip.width:
        raise ValueError(f"the strips of table {first.table} do not cover its values")
    columns = tuple(
        replace(column, row_shape=(done,)) if is_per_value(first, column) else column for column in first.columns
    )
    return TableSpec(name=first.table, rows=first.rows, columns=columns)


def _alike(spec: TableSpec, other: TableSpec) -> bool:
    """Whether two strips of one table have the same rows and columns, but for how many values they hold."""
    if spec.strip is None or other.strip is None or spec.strip.width != other.strip.width or spec.rows != other.rows:
        return False
    return [(column.name, column.dtype) for column in spec.columns] == [(c.name, c.dtype) for c in other.columns]
