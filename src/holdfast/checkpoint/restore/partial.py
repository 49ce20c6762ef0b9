"""Partial recovery: restores lost parts of the tables from the newest saved rows and leaves the rest alone (CPR).

In a single process the parts belong to emulated servers: each holds a contiguous range of every table's rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher, leased, lineage
from holdfast.checkpoint.read.outlines import find_parts
from holdfast.checkpoint.read.plan_builder import plan_tables
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.row_lookup import lookup_rows
from holdfast.checkpoint.restore.table_match import shape_problem
from holdfast.checkpoint.track.chooser import RowChooser
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.keyed_rows import KeyedRows
from holdfast.checkpoint.training.slot_names import WEIGHT
from holdfast.checkpoint.training.tables import Table, row_range
from holdfast.errors import CheckpointNotFound, ConfigurationError, DamagedData, ModelMismatch
from holdfast.format.catalog import Entry
from holdfast.format.layout import row_bytes
from holdfast.policy.arguments import require_count
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store

logger = logging.getLogger("holdfast")

_PIECE_BYTES = 32 << 20  # of rows that are read at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Some of the servers that hold the tables between them."""

    numbers: tuple[int, ...]
    of: int

    def __post_init__(self) -> None:
        require_count(self, "of", self.of)
        known = set(self.numbers) <= set(range(self.of)) and len(set(self.numbers)) == len(self.numbers)
        if not known or not self.numbers:
            raise ConfigurationError(
                f"servers {list(self.numbers)} of {self.of} are not valid; pass at least one, without repeats, from 0 "
                f"to {self.of - 1}"
            )

    @property
    def share(self) -> float:
        """Their share of all servers."""
        return len(self.numbers) / self.of

    def ranges(self, rows: int) -> list[tuple[int, int]]:
        """The ranges they hold of a table with this many rows; none if it has fewer rows than there are servers."""
        ranges = (row_range(rows, number, self.of) for number in sorted(self.numbers))
        return [(start, stop) for start, stop in ranges if start < stop]

    def held(self, table: Table) -> list[tuple[int, int]]:
        """Those of the ranges, or parts of them, whose rows this rank holds; by their numbers in its tensors."""
        first, last = table.origin, table.origin + table.rows
        ranges = ((max(start, first), min(stop, last)) for start, stop in self.ranges(table.whole_shape[0]))
        return [(start - first, stop - first) for start, stop in ranges if start < stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a partial recovery restored.

    Args:
        checkpoint_step: The step of the checkpoint that the oldest restored rows are from.
        newest_step: The step of the newest restored rows.
        rows: How many rows were restored.
        size_bytes: The bytes read.
        pls: The portion of lost samples, including this recovery. None: not metered.
    """

    checkpoint_step: int
    newest_step: int
    rows: int
    size_bytes: int
    pls: float | None = None


def newest_entries(head: Head) -> tuple[Entry, ...]:
    """Where the newest rows are, oldest first: the last checkpoint's lineage, then its priority saves."""
    if head.catalog.head is None:
        raise CheckpointNotFound("there is no checkpoint to recover rows from yet")
    return (*lineage(head, head.catalog.head), *head.catalog.priority)


def plan_newest(fetcher: Fetcher, head: Head, entries: Sequence[Entry]) -> dict[str, TablePlan]:
    """Where the newest row of each kind is: priority saves are further generations on top of a checkpoint's."""
    return plan_tables(find_parts(fetcher, head, entries))


class PartRecovery:
    """Loses and recovers parts of a trainer's tables."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        tables: Sequence[Table],
        tracker: Tracker,
        chooser: RowChooser | None,
        *,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._store = store
        self._chain = chain
        self._tables = tables
        self._tracker = tracker
        self._chooser = chooser
        self._runtime = runtime

    def recover(self, lost: Servers, *, progress: Progress | None = None) -> Recovered:
        """Restore what the servers held. No save may be in progress."""
        self._require_rows(lost)
        with leased(self._store, self._head, newest_entries, runtime=self._runtime) as head, self._writing(lost):
            fetcher = Fetcher(self._store, runtime=self._runtime)
            restorer = PartialRestorer(fetcher, self._tables, fresh_slots=self._fresh_slots(head), progress=progress)
            return restorer.restore(head, lost)

    def lose(self, lost: Servers) -> None:
        """For emulation: overwrite what the servers hold with NaN, so that a row that is not restored shows."""
        self._require_rows(lost)
        with self._writing(lost):
            for table in self._tables:
                for tensor in row_tensors(table).values():
                    for start, stop in lost.held(table):
                        tensor[start:stop] = float("nan") if tensor.is_floating_point() else 0

    def _require_rows(self, lost: Servers) -> None:
        """Refuse servers that hold nothing: the caller expects rows to be restored."""
        if keyed := [table.name for table in self._tables if isinstance(table, KeyedRows)]:
            raise ConfigurationError(
                f"table {keyed[0]!r} finds its rows by keys: older rows would bring keys back that have other rows by "
                "now. Call recover_fully() in place of recover()"
            )
        if any(lost.ranges(table.whole_shape[0]) for table in self._tables):
            return
        largest = max(self._tables, key=lambda table: table.whole_shape[0], default=None)
        if largest is None:
            raise ConfigurationError("nothing to recover: the model has no embedding tables; see tables=")
        raise ConfigurationError(
            f"servers {list(lost.numbers)} of {lost.of} hold no row of any table (the largest, {largest.whole_name}, "
            f"has {largest.whole_shape[0]:,} rows): there is nothing to recover. Pass the number of servers that share "
            "the tables as of="
        )

    def _fresh_slots(self, head: Head) -> frozenset[str]:
        """Tables whose slots in the checkpoint are those of an optimizer before; priority saves have ours."""
        if head.catalog.priority:
            return frozenset()
        return frozenset(table.name for table in self._tables if self._tracker.stored(table.name) is None)

    def _head(self) -> Head:
        head = self._chain.head()
        if head is None:
            raise CheckpointNotFound(f"{self._store.url} holds no checkpoint to recover rows from")
        return head

    @contextmanager
    def _writing(self, lost: Servers) -> Iterator[None]:
        """Rows are written here, not by training: they count as changed, but not as used."""
        try:
            with self._tracker.suspended():
                yield
        finally:
            for table in self._tables:
                for start, stop in lost.held(table):
                    rows = torch.arange(start, stop, device=table.parameter.device)
                    self._tracker.mark(table.name, rows + table.origin)
                    if self._chooser is not None:
                        self._chooser.forget(table.name, start, stop)


class PartialRestorer:
    """Writes lost rows, weights and slots, into live tables."""

    def __init__(
        self,
        fetcher: Fetcher,
        tables: Sequence[Table],
        *,
        fresh_slots: Set[str] = frozenset(),
        progress: Progress | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._fresh_slots = fresh_slots  # tables whose saved slots are not theirs
        self._tables = {table.name: table for table in tables}
        self._progress = progress

    def restore(self, head: Head, servers: Servers) -> Recovered:
        """Bring back what the servers held. A priority save that is damaged is passed over, with those after it."""
        entries = newest_entries(head)
        oldest = len(entries) - len(head.catalog.priority)
        for count in range(len(entries), oldest, -1):
            try:
                return self._restore(head, entries[:count], oldest, servers)
            except DamagedData as error:
                logger.warning("rows saved at step %d are damaged (%s)", entries[count - 1].info.step, error)
        return self._restore(head, entries[:oldest], oldest, servers)

    def _restore(self, head: Head, entries: Sequence[Entry], oldest: int, servers: Servers) -> Recovered:
        plans = plan_newest(self._fetcher, head, entries)
        self._check(plans)
        rows = size_bytes = 0
        for name, table in self._tables.items():
            for start, stop in servers.held(table):
                self._restore_range(table, plans[name], start, stop)
                rows += stop - start
                size_bytes += (stop - start) * row_bytes(plans[name].spec.columns)
        return Recovered(
            checkpoint_step=entries[oldest - 1].info.step,
            newest_step=entries[-1].info.step,
            rows=rows,
            size_bytes=size_bytes,
        )

    def _check(self, plans: Mapping[str, TablePlan]) -> None:
        for name, table in self._tables.items():
            if name not in plans:
                raise ModelMismatch(
                    f"the last checkpoint does not hold table {name!r}; save again before relying on partial recovery"
                )
            whole = torch.empty((table.whole_shape[0], *table.row_shape), device="meta")
            if problem := shape_problem(plans[name].spec, whole):
                raise ModelMismatch(problem)

    def _restore_range(self, table: Table, plan: TablePlan, start: int, stop: int) -> None:
        """Rows ``start`` to ``stop`` of the table's tensors."""
        for low, high in _pieces(plan, start, stop):
            rows = range(table.origin + low, table.origin + high)
            found = lookup_rows(self._fetcher, plan.within(rows), torch.arange(rows.start, rows.stop))
            for name, live in row_tensors(table).items():
                if name in found and (name == WEIGHT or table.name not in self._fresh_slots):
                    live[low:high].copy_(found[name])
                else:
                    live[low:high] = 0  # this optimizer had no such slot yet when the rows were saved
            if self._progress is not None:
                self._progress(sum(values.nbytes for values in found.values()))


def row_tensors(table: Table) -> dict[str, Tensor]:
    """The live tensors of a table's row records, by column."""
    return {WEIGHT: table.parameter.detach(), **{name: slot.detach() for name, slot in table.slots().items()}}


def _pieces(plan: TablePlan, start: int, stop: int) -> Iterator[tuple[int, int]]:
    rows = max(1, _PIECE_BYTES // max(1, row_bytes(plan.spec.columns)))
    for low in range(start, stop, rows):
        yield low, min(low + rows, stop)
