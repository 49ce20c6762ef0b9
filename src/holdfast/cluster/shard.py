"""What one server keeps: its rows of all tables and its piece of the dense vector, with slots. No torch, no socket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.cluster.placement import DensePiece, Group, Keys, Placement, Range
from holdfast.cluster.plan import ModelPlan
from holdfast.kernels import optimize, start
from holdfast.kernels.plain import on_lines
from holdfast.kernels.records import RowRecords, Words
from holdfast.kernels.runs import Runs
from holdfast.policy.optimizer import Optimizer
from holdfast.types import UpdateRule

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GroupArrays:
    """Memory for rows of one width: weights, and slots as they are before any update."""

    weights: Floats
    slots: Mapping[str, Floats]

    @classmethod
    def of(cls, rows: int, width: int, rule: UpdateRule) -> GroupArrays:
        """For so many rows."""
        slots = {slot.name: on_lines((rows, *slot.column(width).row_shape), np.float32) for slot in rule.slots}
        start_slots(rule, slots)
        return cls(on_lines((rows, width), np.float32), slots)

    def first(self, rows: int) -> GroupArrays:
        """The memory of so many of the rows."""
        return GroupArrays(self.weights[:rows], {name: slot[:rows] for name, slot in self.slots.items()})


class GroupShard:
    """A server's rows of the tables of one width, all in one array.

    Attributes:
        weights: ``[rows, width]``.
        slots: The optimizer's, by name, aligned to the weights.
    """

    def __init__(self, group: Group, server: int, rule: UpdateRule, arrays: GroupArrays | None = None) -> None:
        self.group = group
        self.server = server
        self.rule = rule
        rows = group.size(server)
        arrays = GroupArrays.of(rows, group.width, rule) if arrays is None else arrays.first(rows)
        self.weights, self.slots = arrays.weights, arrays.slots
        self._update = optimize.RowUpdater(rule, self.weights, self.slots)
        self._records = RowRecords(rule, self.weights, self.slots)

    def start(self, plan: ModelPlan, *, threads: int = 1) -> None:
        """Write the beginning of every row and its slots."""
        start_slots(self.rule, self.slots)
        for each in self.group.ranges(self.server):
            self._fill(plan, each, self.weights[each.at : each.at + each.end - each.first], threads)

    def start_some(self, plan: ModelPlan, rows: Keys) -> None:
        """The same for some rows, ascending."""
        for slot in self.rule.slots:
            self.slots[slot.name][rows] = slot.initial
        for each in self.group.ranges(self.server):
            count = each.end - each.first
            first, last = np.searchsorted(rows, [each.at, each.at + count])
            if first < last:
                values = np.empty((count, self.group.width), np.float32)
                self._fill(plan, each, values, 1)
                self.weights[rows[first:last]] = values[rows[first:last] - each.at]

    def _fill(self, plan: ModelPlan, each: Range, values: Floats, threads: int) -> None:
        table = plan.tables[each.table]
        key = start.table_key(plan.seed, table.name)
        start.fill(values, table.init.start(), key=key, first_row=each.first, threads=threads)
        if table.padding_idx is not None and each.first <= table.padding_idx < each.end:
            values[table.padding_idx - each.first] = 0

    def read(self, rows: Keys) -> Floats:
        """Copies of some rows, counted from the array's first."""
        return self.weights.take(rows, axis=0)  # twice as fast as an index

    def apply(self, rows: Keys, gradients: Floats, *, lr: float, threads: int = 1) -> None:
        """One update of the rows that have a gradient."""
        self._update(rows, gradients, lr=lr, threads=threads)

    def change(self, rows: Keys, gradients: Floats, *, lr: float, places: Callable[[Keys], optimize.Places]) -> None:
        """The same, and what it changed is added to what is at these places: see ``RowUpdater.change``."""
        self._update.change(rows, gradients, lr=lr, places=places)

    @property
    def record_words(self) -> int:
        """How many words the record of a row has: weights and slots."""
        return self._records.words

    def records(self, rows: Keys) -> Words:
        """Copies of whole records, ``[rows, words]``."""
        return self._records.read(rows)

    def put_records(self, rows: Keys, records: Words) -> None:
        """Take whole records, one for each row."""
        self._records.write(rows, records)

    def records_of(self, runs: Runs, *, threads: int = 1) -> Words:
        """Copies of the records of rows that lie side by side, ``[rows, words]``."""
        return self._records.read_runs(runs, threads=threads)

    def put_records_of(self, runs: Runs, records: Words, *, threads: int = 1) -> None:
        """Take whole records of rows that lie side by side."""
        self._records.write_runs(runs, records, threads=threads)


class DenseShard:
    """A server's piece of the dense vector.

    Attributes:
        values: The piece.
        slots: By the part's name, then by the slot's: aligned to the rows of that part.
        tables: The names of parameters that are embeddings.
    """

    def __init__(self, plan: ModelPlan, piece: DensePiece, rule: UpdateRule) -> None:
        self.piece = piece
        self.rule = rule
        self.tables = {each.name for each in plan.dense if each.table is not None}
        self.values = np.zeros(piece.size, np.float32)
        self.slots: dict[str, Mapping[str, Floats]] = {}
        self._updates = []
        trained = {each.name for each in plan.dense if each.requires_grad}
        for part in piece.parts:
            weights = self.values[part.at : part.at + part.rows * part.width].reshape(part.rows, part.width)
            self.slots[part.name] = optimize.new_slots(rule, part.rows, part.width)
            if part.name in trained:
                self._updates.append((part, optimize.RowUpdater(rule, weights, self.slots[part.name])))

    def start(self, values: Floats) -> None:
        """Begin with these values, before any update."""
        self.values[:] = values
        for slots in self.slots.values():
            start_slots(self.rule, slots)

    def apply(self, gradients: Floats, *, lr: float) -> None:
        """One update with the gradients of the whole piece. Frozen parameters stay as they are."""
        for part, update in self._updates:
            found = gradients[part.at : part.at + part.rows * part.width].reshape(part.rows, part.width)
            update(None, found, lr=lr)


class Shard:
    """All that one server keeps.

    Args:
        placement: Of the whole model.
        server: Which server this is.
        optimizer: Of tables.
        dense_optimizer: Of dense parameters.
        arrays: Memory for each group, for at least as many rows as this server has. None: new memory.
    """

    def __init__(
        self,
        placement: Placement,
        server: int,
        optimizer: Optimizer,
        dense_optimizer: Optimizer,
        arrays: Sequence[GroupArrays] | None = None,
    ) -> None:
        self.placement = placement
        self.server = server
        self.rule = optimizer.rule()
        given: Sequence[GroupArrays | None] = arrays or [None] * len(placement.groups)
        self.groups = [
            GroupShard(group, server, self.rule, each) for group, each in zip(placement.groups, given, strict=True)
        ]
        self.dense = DenseShard(placement.plan, placement.dense[server], dense_optimizer.rule(dense=True))

    def start(self, dense: Floats | None = None, *, threads: int = 1) -> None:
        """Begin: rows as the plan says, dense parameters as a worker's model had them (the whole vector)."""
        for group in self.groups:
            group.start(self.placement.plan, threads=threads)
        if dense is not None:
            self.dense.start(dense[self.dense.piece.start : self.dense.piece.end])


def start_slots(rule: UpdateRule, slots: Mapping[str, Floats], names: Collection[str] | None = None) -> None:
    """What slots hold before any update; ``names``: those of some."""
    for each in rule.slots:
        if names is None or each.name in names:
            slots[each.name][...] = each.initial
