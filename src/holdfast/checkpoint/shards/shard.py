"""A shard: a range of a table's rows, as the arrays of one process hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from holdfast.checkpoint.training.slot_names import WEIGHT
from holdfast.errors import ConfigurationError
from holdfast.format.dtypes import array_code
from holdfast.format.layout import row_bytes
from holdfast.types import ColumnSpec, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """Rows ``first ..`` of a table, possibly none.

    Args:
        table: The table's name.
        rows: How many rows the whole table has.
        first: The first row that the arrays hold.
        columns: ``weight`` and the optimizer's slots, by the names that ``torch.optim`` gives them: live arrays with
            one entry per row of the shard, which every save reads and every load writes to. A slot that torch does not
            have needs a name that means nothing to it: ``step`` would be taken for the count of the whole parameter.
        group: What ``mark`` calls it. Shards of one group lie one behind another in arrays of their process, in the
            order in which they are given, so that rows of all of them can be marked at once. Empty: the table's name.
    """

    table: str
    rows: int
    first: int
    columns: Mapping[str, NDArray[Any]]
    group: str = ""
    spec: TableSpec = field(init=False)  # of the whole table

    def __post_init__(self) -> None:
        if WEIGHT not in self.columns:
            raise ConfigurationError(f"shard of table {self.table!r}: columns= needs an array called {WEIGHT!r}")
        object.__setattr__(self, "group", self.group or self.table)
        for name, array in self.columns.items():
            self._check(name, array)
        if not 0 <= self.first <= self.stop <= self.rows:
            raise ConfigurationError(
                f"shard of table {self.table!r}: rows {self.first} to {self.stop - 1} are not all in a table of "
                f"{self.rows} rows"
            )
        names = (WEIGHT, *sorted(self.columns.keys() - {WEIGHT}))
        columns = tuple(_column(name, self.columns[name]) for name in names)
        object.__setattr__(self, "spec", TableSpec(name=self.table, rows=self.rows, columns=columns))

    @property
    def count(self) -> int:
        """How many rows it has."""
        return len(self.columns[WEIGHT])

    @property
    def stop(self) -> int:
        """The table's row after its last one."""
        return self.first + self.count

    @property
    def range(self) -> range:
        """Its rows, by their numbers in the table."""
        return range(self.first, self.stop)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Its columns in their stored order."""
        return tuple(self.columns[column.name] for column in self.spec.columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row record."""
        return row_bytes(self.spec.columns)

    def _check(self, name: str, array: NDArray[Any]) -> None:
        where = f"shard of table {self.table!r}, column {name!r}"
        if not array.ndim or len(array) != self.count:
            raise ConfigurationError(f"{where}: its shape is {array.shape}; it must have {self.count} rows")
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ConfigurationError(f"{where}: pass a contiguous array that can be written to")


def _column(name: str, array: NDArray[Any]) -> ColumnSpec:
    return ColumnSpec(name=name, dtype=array_code(array.dtype), row_shape=tuple(array.shape[1:]))


def require_shards(shards: Sequence[Shard]) -> None:
    """Refuse two shards of one table in one process."""
    names = [shard.table for shard in shards]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(f"several shards of table {sorted(repeated)[0]!r}; a process holds one of each table")
