"""A keyed table as the other tables of a checkpoint are: rows by number, with more columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.checkpoint.training.keyed import EMPTY_KEY, KEY, KeyedTable
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError
from holdfast.types import KEYED, TableSpec

KEY_COLUMN = KEYED + KEY


@dataclass(eq=False, slots=True, kw_only=True)
class KeyedRows(Table):
    """A table whose rows are found by keys. Every rank but the only one would hold other keys: there is one rank."""

    keyed: KeyedTable
    beside: Callable[[], Sequence[Tensor]] = tuple  # tensors of the model in which it keeps the same in another form

    @property
    def state_name(self) -> str:
        """Under which a checkpoint holds what it keeps for no single row."""
        return f"keyed {self.name}"

    def own_columns(self) -> dict[str, Tensor]:
        """Keys, and what else it keeps for each row."""
        return {KEYED + name: column for name, column in self.keyed.columns.items()}

    def is_like(self, shape: Sequence[int]) -> bool:
        """Whatever the number of rows: keys find other ones."""
        return tuple(shape[1:]) == self.row_shape

    def held_elsewhere(self) -> set[int]:
        """The identities of tensors that the model need not store: this table does."""
        return {id(tensor) for tensor in (*self.keyed.columns.values(), *self.beside())}

    def empty(self) -> None:
        """Take every key away."""
        self.keyed.columns[KEY].fill_(EMPTY_KEY)
        self.keyed.restored()

    def get_extra_state(self) -> Any:
        """What it keeps for no single row."""
        return self.keyed.get_state()

    def set_extra_state(self, state: Any) -> None:
        """Take that over from a checkpoint."""
        self.keyed.set_state(state)


def as_keyed(keyed: Mapping[str, KeyedTable] | None) -> list[KeyedRows]:
    """The tables that a user passed; raises ConfigurationError for what could not be saved."""
    given = {} if keyed is None else keyed
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"keyed= takes a dict of keyed tables by name, not {type(given).__name__}")
    by_weight: dict[int, str] = {}
    for name, table in given.items():
        _require_valid(name, table)
        if (other := by_weight.setdefault(id(table.weight), name)) != name:
            raise ConfigurationError(f"keyed tables {other!r} and {name!r} have the same weight; pass it once")
    return [KeyedRows(name=name, parameter=table.weight, keyed=table) for name, table in given.items()]


def require_one_rank(tables: Sequence[Table], world: int) -> None:
    """Raise ConfigurationError for a keyed table in a job of several ranks: each would have keys of its own."""
    for table in tables:
        if isinstance(table, KeyedRows) and world > 1:
            raise ConfigurationError(
                f"table {table.name!r} finds its rows by keys, and this job has {world} ranks, each with keys of its "
                "own. This is not supported: train it in one process, or find rows by their numbers"
            )


def key_problem(spec: TableSpec, table: Table) -> str | None:
    """Why the columns of a stored table are not those by which this one finds its rows."""
    stored = {column.name: column for column in spec.columns if column.is_keyed}
    live = {column.name: column for column in table.spec().columns if column.is_keyed}
    if stored == live:
        return None
    if not live:
        return (
            f"table {spec.name} finds its rows by keys in the checkpoint, and by their numbers in the model; pass it "
            f"as keyed={{{spec.name!r}: ...}}"
        )
    if not stored:
        return f"table {spec.name} finds its rows by keys in the model, and the checkpoint holds none for it"
    differing = sorted(name.removeprefix(KEYED) for name, _ in stored.items() ^ live.items())
    return f"keyed table {spec.name} has other columns in the checkpoint: {', '.join(dict.fromkeys(differing))} differ"


def _require_valid(name: str, table: KeyedTable) -> None:
    if not isinstance(table, KeyedTable):
        raise ConfigurationError(
            f"keyed table {name!r} is a {type(table).__name__}, which is no KeyedTable: it lacks "
            f"{', '.join(_missing(table))}"
        )
    if not isinstance(table.weight, nn.Parameter) or table.weight.dim() < 1:
        raise ConfigurationError(f"the weight of keyed table {name!r} must be an nn.Parameter with one entry per row")
    rows, columns = table.weight.shape[0], table.columns
    keys = columns.get(KEY)
    if not isinstance(keys, Tensor) or keys.dtype is not torch.int64 or keys.dim() != 1:
        raise ConfigurationError(f"keyed table {name!r} needs a column {KEY!r} of type int64 with one key per row")
    for column, values in columns.items():
        if not isinstance(values, Tensor) or values.dim() < 1 or values.shape[0] != rows:
            raise ConfigurationError(
                f"column {column!r} of keyed table {name!r} must be a tensor with one entry for each of its {rows} rows"
            )


def _missing(table: object) -> list[str]:
    members = ("weight", "columns", "take_changed", "restored", "insert", "get_state", "set_state")
    return [member for member in members if not hasattr(table, member)]
