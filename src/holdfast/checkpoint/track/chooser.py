"""Chooses what a priority save holds: rows of the largest tables by a policy's account of them, the others whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from holdfast.checkpoint.track.selectors import Selector, selector
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.tables import Table, row_range
from holdfast.policy.priority import Priority, largest
from holdfast.types import TableSpec

Chosen = Mapping[str, Tensor | None]  # by table: row ids, ascending; None: all of them


class RowChooser:
    """Knows, for this rank's share of every table, which rows the newest save holds as they are."""

    def __init__(
        self, policy: Priority, tables: Sequence[Table], tracker: Tracker, *, rank: int = 0, world: int = 1
    ) -> None:
        self._policy = policy
        self._tables = {table.name: table for table in tables}
        self._tracker = tracker
        self._rank = rank
        self._world = world
        self._selectors: dict[str, Selector] = {}
        self._columns: dict[str, TableSpec] = {}  # of tables saved whole since the last checkpoint
        self._pending: tuple[bool, dict[str, TableSpec]] | None = None

    @property
    def memory_bytes(self) -> dict[str, int]:
        """What choosing takes, by table."""
        return {name: each.memory_bytes for name, each in self._selectors.items()}

    def start(self) -> None:
        """Training begins here, or goes on from a checkpoint: all is as it was saved."""
        sizes = {name: table.parameter.nbytes for name, table in self._tables.items()}
        self._selectors = {}
        for name in sorted(largest(sizes)):
            table = self._tables[name]
            start, stop = row_range(table.rows, self._rank, self._world)
            self._selectors[name] = each = selector(self._policy, table, start, stop)
            self._tracker.observe(name, each.see if each.sees_gradients else None)
        self._columns, self._pending = {}, None

    def choose(self) -> Chosen:
        """What a priority save of this moment holds."""
        return {name: self._choose(table) for name, table in self._tables.items()}

    def begin(self, chosen: Chosen | None) -> None:
        """A snapshot of these rows is taken now; None: of all, for a checkpoint."""
        for name, each in self._selectors.items():
            each.begin(None if chosen is None else chosen[name])
        whole = [] if chosen is None else [name for name, ids in chosen.items() if ids is None]
        self._pending = (chosen is None, {name: self._tables[name].spec() for name in whole})

    def committed(self) -> None:
        """The snapshot is committed."""
        for each in self._selectors.values():
            each.committed()
        if self._pending is not None:
            is_checkpoint, columns = self._pending
            self._columns = columns if is_checkpoint else self._columns | columns
        self._pending = None

    def failed(self) -> None:
        """It is not."""
        for each in self._selectors.values():
            each.failed()
        self._pending = None

    def forget(self, name: str, start: int, stop: int) -> None:
        """These rows were brought back from the newest save."""
        if name in self._selectors:
            self._selectors[name].forget(start, stop)

    def _choose(self, table: Table) -> Tensor | None:
        """None also where the newest save lacks columns, as before an optimizer's first step: rows stand on those."""
        stored = self._columns.get(table.name) or self._tracker.stored(table.name)
        if table.name not in self._selectors or stored != table.spec():
            return None
        return self._selectors[table.name].choose()
