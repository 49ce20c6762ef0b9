"""Chooses what a priority save holds: rows of the largest tables, ranked by a policy, and the smaller tables whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from holdfast.checkpoint.track.selectors import Selector, selector
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.tables import Table
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.policy.priority import Priority, largest
from holdfast.types import Kind, TableSpec

Chosen = Mapping[str, Tensor | None]  # by table: row ids, ascending; None: all of them


class RowChooser:
    """Knows, for this rank's share of every table, which rows the newest save holds unchanged."""

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
        self._chosen: Chosen = {}
        self._pending: dict[str, TableSpec] = {}  # of tables that the save under way holds whole

    @property
    def chosen(self) -> Chosen:
        """What the priority save in progress holds."""
        return self._chosen

    @property
    def memory_bytes(self) -> dict[str, int]:
        """The memory that choosing needs, by table."""
        return {name: each.memory_bytes for name, each in self._selectors.items()}

    def start(self) -> None:
        """Training starts, or continues from a checkpoint: everything is as saved."""
        sizes = {name: table.parameter.nbytes for name, table in self._tables.items()}
        self._selectors = {}
        for name in sorted(largest(sizes)):
            table = self._tables[name]
            start, stop = table.share(self._rank, self._world)
            self._selectors[name] = each = selector(self._policy, table, start, stop)
            self._tracker.observe(name, each.see if each.sees_gradients else None)
        self._columns, self._pending = {}, {}

    def begin(self, kind: Kind) -> None:
        """A snapshot is taken now: of the rows chosen at this moment or, for a checkpoint, of all."""
        rows_only = kind is Kind.PRIORITY
        self._chosen = {name: self._choose(table) for name, table in self._tables.items()} if rows_only else {}
        for name, each in self._selectors.items():
            each.begin(self._chosen.get(name))
        self._pending = {name: self._tables[name].spec() for name, ids in self._chosen.items() if ids is None}

    def committed(self, kind: Kind, state: Sequence[PieceDigest] = ()) -> None:
        """The newest save holds these rows."""
        for each in self._selectors.values():
            each.committed()
        self._columns = self._columns | self._pending if kind is Kind.PRIORITY else {}
        self._chosen = {}

    def failed(self, kind: Kind) -> None:
        """The newest save is the one before."""
        for each in self._selectors.values():
            each.failed()
        self._chosen = {}

    def forget(self, name: str, start: int, stop: int) -> None:
        """These rows were restored from the newest save."""
        if name in self._selectors:
            self._selectors[name].forget(start, stop)

    def _choose(self, table: Table) -> Tensor | None:
        """None also if the newest save lacks columns that rows need, as before an optimizer's first step."""
        stored = self._columns.get(table.name) or self._tracker.stored(table.name)
        if table.name not in self._selectors or stored != table.spec():
            return None
        return self._selectors[table.name].choose()
