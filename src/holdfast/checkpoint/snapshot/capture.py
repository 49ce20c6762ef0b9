"""Decides what a snapshot of this rank holds: its share of each table's rows, and its share of everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.ranks.alike import ROWS, require_same_rows
from holdfast.checkpoint.ranks.tiling import Tiling
from holdfast.checkpoint.snapshot.captured import Captured, Snapshot, Unfinished
from holdfast.checkpoint.snapshot.changed import ChangedBytes, ChangedRows, ChangedShares
from holdfast.checkpoint.snapshot.device_baselines import DeviceBaselines
from holdfast.checkpoint.snapshot.gpu_records import encodable
from holdfast.checkpoint.snapshot.side_streams import SideStreams
from holdfast.checkpoint.snapshot.table_codecs import TableCodecs
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.table_parts import TablePart, TablePartKey, TableParts
from holdfast.checkpoint.snapshot.touched_rows import TouchedRows
from holdfast.checkpoint.track.chooser import RowChooser
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.dtensors import local_of
from holdfast.checkpoint.training.forms import form_of
from holdfast.checkpoint.training.known_state import KnownState, Training
from holdfast.checkpoint.training.lent import LentTable
from holdfast.checkpoint.training.scatter import replaced
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import SaveFailed
from holdfast.format.catalog import Intent
from holdfast.format.state import JobState, RankState, SavedState, SharedState, rows_tree
from holdfast.format.tree import EncodedTree, TreeBuilder, encode_tree
from holdfast.kernels import rows
from holdfast.kernels.quantize.baseline import BaselineRows
from holdfast.types import EXACTLY, Kind, Since, Stored


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnState:
    """What a rank saves of its own: ``reader`` may change as training goes on, ``rng`` gives what it gave before."""

    step: int
    reader: Mapping[str, Any] | None
    rng: Callable[[], Mapping[str, Any] | None]


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
        baselines: DeviceBaselines | None = None,
    ) -> None:
        """With ``streams``, touched rows on devices that they cover are not listed here: that would wait for these.

        ``baselines`` are what these make differences from.
        """
        self._baselines = baselines
        self._tables = tables
        self._streams = streams
        self._tracker = tracker
        self._state = state
        self._chooser = chooser
        self._tiling = tiling
        self._rank = rank
        self._world = world
        self._base: str | None = None  # what the save in progress stands on
        self._known = KnownState(state)
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
            copy, part = self._copy(index, table, None, stored.get(table.name, EXACTLY))
            for column in encodable(copy).values():
                column.warm_up()
            if self._baselines is not None and part.baseline is not None and part.inner is not None:
                weight = copy.tensors[0][copy.range]
                self._baselines.reserve(index, weight, part.baseline, part.inner, copy.range.start)

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

    def take(
        self,
        intent: Intent,
        own: OwnState,
        job: Callable[[], JobState] | None,
        *,
        baseline: str | None = None,
    ) -> Snapshot:
        """The snapshot of this moment: this rank's own state and, with ``job``, the state of the whole job.

        The intent says how the agent is to store each table; rows are copied unchanged. ``baseline`` is what a delta
        stands on, if that is certain.
        """
        if self._baselines is not None:
            self._baselines.take(intent.checkpoint if intent.kind is Kind.FULL else None)
        self._base = baseline
        taken = [self._table(index, table, intent) for index, table in enumerate(self._tables)]
        training, builder = self.take_apart() if job is not None else (None, TreeBuilder())
        reader = None if own.reader is None else builder.node(own.reader, "reader")
        tiles = self.tiles()

        def finish() -> Captured:
            shared = None if job is None else SharedState(job=job(), training=training or {})
            tree = SavedState(rank=RankState(step=own.step, rng=own.rng()), shared=shared).to_tree()
            tree["reader"] = reader
            return _completed(taken, builder.finish(tree, tiles=len(tiles)), tiles)

        if tiles:  # which stand behind all others: nobody knows their numbers yet
            return finish()
        return Unfinished(copies=tuple([copy for copy, _ in taken]), tensors=tuple(builder.tensors), finish=finish)

    def take_apart(self) -> tuple[Training, TreeBuilder]:
        """The state of the whole job as one rank stores it, and what goes on with the tree that it is a part of."""
        if not self._tiling.is_needed:  # then nobody has a DTensor, and nobody need look for one in every save
            return self._known.take_apart()
        builder = TreeBuilder()
        training = replaced(self._state.capture(), lambda name, _: self._tiling.scattered(name))
        return {name: builder.node(each, "training", name) for name, each in training.items()}, builder

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
        return _completed(taken, encode_tree(rows_tree(step)))

    def _changed_rows(self, table: Table, stored: Stored) -> ChangedRows:
        start, stop = table.share(self._rank, self._world)
        return TableCodecs.of(table.spec(), stored).changed(
            rows=stop - start,
            since_last=self._tracker.touched(table, Since.LAST).count(start, stop),
            since_baseline=self._tracker.touched(table, Since.BASELINE).count(start, stop),
        )

    def _table(self, index: int, table: Table, intent: Intent) -> tuple[TableCopy, TablePart]:
        touched = self._tracker.touched(table, Since.BASELINE if intent.kind is Kind.DIFFERENTIAL else Since.LAST)
        stored = intent.precision(table.name)
        if intent.kind is Kind.FULL or touched.whole:
            copy, part = self._copy(index, table, None, stored)
            if self._baselines is not None:
                self._keep_baseline(self._baselines, copy, part, intent.kind)
            return copy, part
        start, stop = table.share(self._rank, self._world)
        if self._streams is not None and self._streams.covers(table.parameter):
            rows = TouchedRows(touched=touched, start=start, stop=stop)
            base = None
            if self._baselines is not None and stored.difference:
                base = self._baselines.of(index, self._base)
            return self._copy(index, table, rows, stored, base)
        return self._copy(index, table, touched.ids(start, stop), stored)

    def _keep_baseline(self, baselines: DeviceBaselines, copy: TableCopy, part: TablePart, kind: Kind) -> None:
        """A table is saved whole: in a baseline, or above one, whose rows later ones do not differ from any more."""
        if kind is not Kind.FULL:
            baselines.hold_whole(copy.index)
        elif part.baseline is not None and part.inner is not None:
            rows = copy.range
            baselines.keep(copy.index, copy.tensors[0], part.baseline, part.inner, rows.start, rows.stop)

    def _copy(
        self,
        index: int,
        table: Table,
        ids: Tensor | TouchedRows | None,
        stored: Stored,
        base: BaselineRows | None = None,
    ) -> tuple[TableCopy, TablePart]:
        first, last = table.share(self._rank, self._world)
        origin = table.origin
        start, stop = origin + first, origin + last
        slots = table.beside_weight()
        spec = table.spec(slots)
        made_from = None if base is None else self._base
        part = self._parts.of(index, TablePartKey(spec, stored, start, stop, ids is None, made_from), base)
        copy = TableCopy(
            index=index,
            columns=part.columns,
            tensors=(table.parameter.detach(), *[slots[column.name] for column in spec.slots]),
            start=start,
            stop=stop,
            ids=ids if isinstance(ids, Tensor) else None,
            unlisted=ids if isinstance(ids, TouchedRows) else None,
            origin=origin,
            codecs=part.codecs,
            difference=part.difference,
        )
        return copy, part


def _completed(
    taken: Sequence[tuple[TableCopy, TablePart]], encoded: EncodedTree, tiles: Sequence[Tensor] = ()
) -> Captured:
    skeleton = torch.frombuffer(bytearray(encoded.skeleton), dtype=torch.uint8)
    tensors = (skeleton, *encoded.tensors, *tiles)
    return Captured(
        copies=tuple(copy for copy, _ in taken),
        slices=tuple(part.told for _, part in taken),
        tensors=tensors,
        tensor_specs=tuple(form_of(tensor) for tensor in tensors),
    )
