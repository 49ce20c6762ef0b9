"""Decides what a snapshot of this rank holds: its share of each table's rows, and its share of everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.ranks.alike import ROWS, require_same_rows
from holdfast.checkpoint.snapshot.changed import ChangedRows, ChangedShares, baseline_row_bytes, delta_row_bytes
from holdfast.checkpoint.snapshot.frame_filler import FrameFiller
from holdfast.checkpoint.snapshot.gpu_records import encodable
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.track.chooser import RowChooser
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.forms import form_of
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.tables import Table, row_range
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.codec import Codec, Difference, to_json
from holdfast.codec.choice import can_quantize, table_codecs, weight_codec
from holdfast.codec.chunk import Codecs
from holdfast.errors import SaveFailed
from holdfast.format.catalog import Intent
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import table_spec_to_json
from holdfast.format.state import JobState, RankState, SavedState, SharedState, rows_tree
from holdfast.format.tree import encode_tree
from holdfast.kernels import rows
from holdfast.types import BASELINE_BITS, EXACTLY, Kind, Since, Stored, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A snapshot before it is copied: live tensors, and which of their rows to copy."""

    copies: tuple[TableCopy, ...]
    slices: tuple[TableSlice, ...]
    tensors: tuple[Tensor, ...]  # of the state tree; the first is its skeleton

    @property
    def tensor_specs(self) -> list[tuple[str, tuple[int, ...]]]:
        """Types and shapes of the state tensors."""
        return [form_of(tensor) for tensor in self.tensors]

    @property
    def full_bytes(self) -> int:
        """Its size with every row."""
        in_tables = sum(row_bytes(copy.columns) * (copy.stop - copy.start) for copy in self.copies)
        return in_tables + sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def copy_into(self, filler: FrameFiller, *, state_apart: bool = False) -> None:
        """Copy it: the part that the training loop waits for.

        ``state_apart`` keeps state and rows in separate frames, and so in separate bundles: a grid moves the rows away.
        """
        try:
            for index, tensor in enumerate(self.tensors):
                filler.add_state(index, tensor)
            if state_apart:
                filler.end_frame()
            for copy in self.copies:
                filler.add_table(copy)
            filler.flush()
        finally:
            filler.wait()


class Capture:
    """Knows the tables, what moved in them, and the rest of the training state."""

    def __init__(
        self,
        tables: Sequence[Table],
        tracker: Tracker,
        state: TrainingState,
        chooser: RowChooser | None = None,
        *,
        rank: int,
        world: int,
    ) -> None:
        self._tables = tables
        self._tracker = tracker
        self._state = state
        self._chooser = chooser
        self._rank = rank
        self._world = world
        rows.warm_up()

    @property
    def table_names(self) -> list[str]:
        """The names of all tables."""
        return [table.name for table in self._tables]

    def start(self) -> None:
        """Training starts, or continues from a checkpoint."""
        if self._chooser is not None:
            self._chooser.start()

    def warm_up(self, stored: Mapping[str, Stored]) -> None:
        """Compile or load the GPU encoders now, so that no save waits for them."""
        for index, table in enumerate(self._tables):
            copy, _ = self._copy(index, table, None, stored.get(table.name, EXACTLY))
            for column in encodable(copy).values():
                column.warm_up()

    def changed(self, stored: Mapping[str, Stored]) -> ChangedShares:
        """How much a delta of this rank would hold now, and how much a restore of it would read above the baseline."""
        return ChangedShares.of(self._changed_rows(table, stored.get(table.name, EXACTLY)) for table in self._tables)

    def require_same_rows(self, agreement: Agreement, *, changed: bool) -> None:
        """Raise ConfigurationError if the ranks, each of which saves a share, hold different tables under one name.

        ``changed`` compares rows that changed: tables of one seed are alike until then.
        """
        require_same_rows(self._tables, agreement, self._some_changed if changed else dict)

    def _some_changed(self) -> dict[str, list[int]]:
        touched = {table: self._tracker.touched(table, Since.LAST) for table in self._tables}
        return {
            table.name: rows.ids(0, table.rows)[:ROWS].tolist()
            for table, rows in touched.items()
            if not rows.whole and rows.count(0, table.rows)
        }

    def take(self, intent: Intent, rank: RankState, job: JobState | None) -> Captured:
        """The snapshot of this moment: this rank's own state and, with ``job``, the state of the whole job.

        The intent says how the agent is to store each table; rows are copied unchanged.
        """
        taken = [self._table(index, table, intent) for index, table in enumerate(self._tables)]
        shared = SharedState(job=job, training=self._state.capture()) if job is not None else None
        return Captured(
            copies=tuple(copy for copy, _ in taken),
            slices=tuple(part for _, part in taken),
            tensors=_tensors(SavedState(rank=rank, shared=shared).to_tree()),
        )

    def take_rows(self, step: int) -> Captured:
        """The snapshot of the chosen rows of this rank's share, and of no other state.

        They are stored exactly: only a later save of the same rows could be more precise.
        """
        if self._chooser is None:
            raise SaveFailed("no priority policy is set")
        chosen = self._chooser.chosen
        taken = [self._copy(index, table, chosen[table.name], EXACTLY) for index, table in enumerate(self._tables)]
        return Captured(
            copies=tuple(copy for copy, _ in taken),
            slices=tuple(part for _, part in taken),
            tensors=_tensors(rows_tree(step)),
        )

    def _changed_rows(self, table: Table, stored: Stored) -> ChangedRows:
        start, stop = row_range(table.rows, self._rank, self._world)
        spec = table.spec()
        codecs, difference = _codecs(spec, stored)
        return ChangedRows(
            rows=stop - start,
            since_last=self._tracker.touched(table, Since.LAST).count(start, stop),
            since_baseline=self._tracker.touched(table, Since.BASELINE).count(start, stop),
            baseline_row_bytes=baseline_row_bytes(spec, codecs),
            delta_row_bytes=delta_row_bytes(spec, codecs, difference),
        )

    def _table(self, index: int, table: Table, intent: Intent) -> tuple[TableCopy, TableSlice]:
        touched = self._tracker.touched(table, Since.BASELINE if intent.kind is Kind.DIFFERENTIAL else Since.LAST)
        whole = intent.kind is Kind.FULL or touched.whole
        ids = None if whole else touched.ids(*row_range(table.rows, self._rank, self._world))
        return self._copy(index, table, ids, intent.precision(table.name))

    def _copy(self, index: int, table: Table, ids: Tensor | None, stored: Stored) -> tuple[TableCopy, TableSlice]:
        start, stop = row_range(table.rows, self._rank, self._world)
        spec, slots = table.spec(), table.slots()
        codecs, difference = _codecs(spec, stored)
        copy = TableCopy(
            index=index,
            columns=spec.columns,
            tensors=(table.parameter.detach(), *(slots[column.name] for column in spec.slots)),
            start=start,
            stop=stop,
            ids=ids,
            codecs=_known_here(spec, codecs, difference is not None and ids is not None),
        )
        return copy, TableSlice(
            spec=table_spec_to_json(spec),
            start=start,
            stop=stop,
            whole=ids is None,
            codecs={name: to_json(codec) for name, codec in codecs.items()} or None,
            difference=to_json(difference) if difference is not None else None,
        )


def _tensors(tree: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """A state tree: its skeleton first."""
    encoded = encode_tree(tree)
    return (torch.frombuffer(bytearray(encoded.skeleton), dtype=torch.uint8), *encoded.tensors)


def _codecs(spec: TableSpec, stored: Stored) -> tuple[Codecs, Codec | None]:
    """The codecs of a table's columns, none for as they are, and that of its weights' differences.

    Rows that are not stored as differences, those of the baseline first of all, have the baseline's precision.
    """
    if stored.bits is None:
        return {}, None
    bits = BASELINE_BITS if stored.difference else stored.bits
    differs = stored.difference and can_quantize(spec.weight)
    return table_codecs(spec, bits, stored.method), weight_codec(stored.bits, stored.method) if differs else None


def _known_here(spec: TableSpec, codecs: Codecs, differs: bool) -> dict[str, Codec]:
    """The codecs that rows can be encoded with before the agent has them: it alone knows what weights differ from."""
    known = {name: codec for name, codec in codecs.items() if not isinstance(codec, Difference)}
    if differs:
        known.pop(spec.weight.name, None)
    return known
