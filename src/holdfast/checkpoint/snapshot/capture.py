"""Decides what a snapshot of this rank holds: its share of each table's rows, and its share of everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.ranks.alike import ROWS, require_same_rows
from holdfast.checkpoint.ranks.tiling import Tiling
from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.changed import ChangedBytes, ChangedRows, ChangedShares
from holdfast.checkpoint.snapshot.gpu_records import encodable
from holdfast.checkpoint.snapshot.side_streams import SideStreams
from holdfast.checkpoint.snapshot.table_codecs import TableCodecs
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.table_parts import TablePartKey, TableParts
from holdfast.checkpoint.snapshot.touched_rows import TouchedRows
from holdfast.checkpoint.track.chooser import RowChooser
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.dtensors import local_of
from holdfast.checkpoint.training.forms import form_of
from holdfast.checkpoint.training.lent import LentTable
from holdfast.checkpoint.training.scatter import replaced
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.tables import Table
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.errors import SaveFailed
from holdfast.format.catalog import Intent
from holdfast.format.state import JobState, RankState, SavedState, SharedState, rows_tree
from holdfast.format.tree import encode_tree
from holdfast.kernels import rows
from holdfast.types import EXACTLY, Kind, Since, Stored


class Capture:
    """Knows the tables, what moved in them, and the rest of the training state."""

    def __init__(
        self,
        tables: Sequence[Table],
        tracker: Tracker,
        state: TrainingState,
        chooser: RowChooser | None = None,
        *,
        tiling: Tiling,
        rank: int,
        world: int,
        streams: SideStreams | None = None,
    ) -> None:
        """With ``streams``, touched rows on devices that they cover are not listed here: that would wait for these."""
        self._tables = tables
        self._streams = streams
        self._tracker = tracker
        self._state = state
        self._chooser = chooser
        self._tiling = tiling
        self._rank = rank
        self._world = world
        self._parts = TableParts()
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

    def changed_everywhere(self, stored: Mapping[str, Stored], agreement: Agreement) -> ChangedShares:
        """The same of all ranks, where they hold different rows; all of them ask."""
        own = ChangedBytes.of(self._changed_rows(table, stored.get(table.name, EXACTLY)) for table in self._tables)
        found = agreement.gather([own.baseline, own.increment, own.above_baseline])
        return ChangedShares.joined(
            ChangedBytes(baseline=baseline, increment=increment, above_baseline=above)
            for baseline, increment, above in found
        )

    @property
    def is_divided(self) -> bool:
        """Whether ranks hold different rows."""
        return any(table.extent is not None for table in self._tables)

    @property
    def must_agree(self) -> bool:
        """Whether ranks have to tell each other something before a save: the same on all of them."""
        return self._tiling.is_needed or any(isinstance(table, LentTable) for table in self._tables)

    def agree(self, agreement: Agreement) -> None:
        """What all ranks must know before a save, and come here for: who stores which tile of which DTensor.

        And ranks without rows of a table, what its optimizer keeps elsewhere.
        """
        self.agree_on_tiles()
        asking = [table for table in self._tables if isinstance(table, LentTable)]
        if not asking:
            return
        own = {table.name: table.lend() for table in asking if table.rows}
        lent: dict[str, Any] = {}
        for facts in agreement.gather(own):
            lent = {**facts, **lent}
        for table in asking:
            if not table.rows and table.name in lent:
                table.borrow(lent[table.name])

    def agree_on_tiles(self) -> None:
        """Who stores which tile of which DTensor, as they are now; all ranks come here."""
        if self._tiling.is_needed:
            self._tiling.agree(self._state.dtensors)

    def require_same_rows(self, agreement: Agreement, *, changed: bool) -> None:
        """Raise ConfigurationError if the ranks, each of which saves a share, hold different tables under one name.

        ``changed`` compares rows that changed: tables of one seed are alike until then.
        """
        require_same_rows(self._tables, agreement, self._some_changed if changed else dict)

    def _some_changed(self) -> dict[str, list[int]]:
        replicated = (table for table in self._tables if table.extent is None)
        touched = {table: self._tracker.touched(table, Since.LAST) for table in replicated}
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
        shared = SharedState(job=job, training=self.training()) if job is not None else None
        return _captured(taken, SavedState(rank=rank, shared=shared).to_tree(), self.tiles())

    def training(self) -> dict[str, Any]:
        """The state of the whole job as one rank stores it: what is scattered is named in its place."""
        training = self._state.capture()
        if not self._tiling.is_needed:  # then nobody has a DTensor, and nobody need look for one in every save
            return training
        return replaced(training, lambda name, _: self._tiling.scattered(name))

    def tiles(self) -> list[Tensor]:
        """This rank's part of what is scattered."""
        if not self._tiling.own:
            return []
        tensors = self._state.dtensors()
        return [local_of(tensors[name]).detach() for name in self._tiling.own]

    def take_rows(self, step: int) -> Captured:
        """The snapshot of the chosen rows of this rank's share, and of no other state.

        They are stored exactly: only a later save of the same rows could be more precise.
        """
        if self._chooser is None:
            raise SaveFailed("no priority policy is set")
        chosen = self._chooser.chosen
        taken = [self._copy(index, table, chosen[table.name], EXACTLY) for index, table in enumerate(self._tables)]
        return _captured(taken, rows_tree(step))

    def _changed_rows(self, table: Table, stored: Stored) -> ChangedRows:
        start, stop = table.share(self._rank, self._world)
        return TableCodecs.of(table.spec(), stored).changed(
            rows=stop - start,
            since_last=self._tracker.touched(table, Since.LAST).count(start, stop),
            since_baseline=self._tracker.touched(table, Since.BASELINE).count(start, stop),
        )

    def _table(self, index: int, table: Table, intent: Intent) -> tuple[TableCopy, TableSlice]:
        touched = self._tracker.touched(table, Since.BASELINE if intent.kind is Kind.DIFFERENTIAL else Since.LAST)
        whole = intent.kind is Kind.FULL or touched.whole
        start, stop = table.share(self._rank, self._world)
        stored = intent.precision(table.name)
        if whole:
            return self._copy(index, table, None, stored)
        if self._streams is not None and self._streams.covers(table.parameter):
            return self._copy(index, table, TouchedRows(touched=touched, start=start, stop=stop), stored)
        return self._copy(index, table, touched.ids(start, stop), stored)

    def _copy(
        self, index: int, table: Table, ids: Tensor | TouchedRows | None, stored: Stored
    ) -> tuple[TableCopy, TableSlice]:
        start, stop = (table.origin + row for row in table.share(self._rank, self._world))
        slots = table.beside_weight()
        spec = table.spec(slots)
        part = self._parts.of(index, TablePartKey(spec=spec, stored=stored, start=start, stop=stop, whole=ids is None))
        copy = TableCopy(
            index=index,
            columns=part.columns,
            tensors=(table.parameter.detach(), *(slots[column.name] for column in spec.slots)),
            start=start,
            stop=stop,
            ids=ids if isinstance(ids, Tensor) else None,
            unlisted=ids if isinstance(ids, TouchedRows) else None,
            origin=table.origin,
            codecs=part.codecs,
        )
        return copy, part.told


def _captured(
    taken: Sequence[tuple[TableCopy, TableSlice]], tree: Mapping[str, Any], tiles: Sequence[Tensor] = ()
) -> Captured:
    encoded = encode_tree(tree, tiles=len(tiles))
    skeleton = torch.frombuffer(bytearray(encoded.skeleton), dtype=torch.uint8)
    tensors = (skeleton, *encoded.tensors, *tiles)
    return Captured(
        copies=tuple(copy for copy, _ in taken),
        slices=tuple(part for _, part in taken),
        tensors=tensors,
        tensor_specs=tuple(form_of(tensor) for tensor in tensors),
    )
