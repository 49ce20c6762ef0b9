"""Fills shards from a checkpoint, whatever the number of its parts and of the shards."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests, lineage
from holdfast.checkpoint.read.outlines import find_parts
from holdfast.checkpoint.read.plan_builder import plan_tables
from holdfast.checkpoint.read.strips import WholeTable, join_strips, place_in
from holdfast.checkpoint.restore.arrays import ArrayColumn
from holdfast.checkpoint.restore.rows import WantedRows, write_rows
from holdfast.checkpoint.restore.saved_state import checked_state, read_saved, shared_state
from holdfast.checkpoint.restore.scattered import made_whole
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_tensors
from holdfast.checkpoint.shards.loaded import Loaded, LoadedState
from holdfast.checkpoint.shards.shard import Shard
from holdfast.errors import CheckpointNotFound, DamagedData, ModelMismatch
from holdfast.format.catalog import Entry
from holdfast.format.document import parse
from holdfast.format.dtypes import array_dtype
from holdfast.format.host_values import HostTensor
from holdfast.format.manifest import Manifest
from holdfast.format.state import JobState, RankState
from holdfast.format.tree import decode_tree
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import Kind

logger = logging.getLogger("holdfast")

Ids = NDArray[np.int64]
_Order = Callable[[Shard, WholeTable], tuple[Shard | WholeTable, Shard | WholeTable]]


class ShardLoader:
    """Reads one run into the shards of one process."""

    def __init__(
        self, store: Store, shards: Sequence[Shard], *, progress: Progress | None = None, runtime: Runtime = SYSTEM
    ) -> None:
        self._fetcher = Fetcher(store, runtime=runtime)
        self._shards = {shard.table: shard for shard in shards}
        self._progress = progress

    def load(self, head: Head, entry: Entry, *, state: bool) -> Loaded:
        """Fill the shards from a checkpoint. Raises DamagedData if any byte of it is off."""
        return self._load(head, entry, lineage(head, entry.info.id), state=state)

    def load_newest(self, head: Head, *, state: bool, rows: bool = True) -> Loaded:
        """Fill the shards with the newest rows saved: by the last checkpoint, or by a priority save after it.

        A priority save that is damaged is passed over, with those after it. Without ``rows`` none is read.
        """
        if head.catalog.head is None:
            raise CheckpointNotFound("there is no checkpoint to recover rows from yet")
        entry, above = head.by_id[head.catalog.head], list(head.catalog.priority)
        while True:
            entries = (*lineage(head, entry.info.id), *above)
            try:
                return replace(self._load(head, entry, entries, state=state, rows=rows), is_newest=True)
            except DamagedData as error:
                if not above:
                    raise
                logger.warning("rows saved at step %d are damaged (%s)", above.pop().info.step, error)

    def _load(self, head: Head, entry: Entry, entries: Sequence[Entry], *, state: bool, rows: bool = True) -> Loaded:
        name = entry.part_list.name  # below which something is malformed, where planning trips over it
        plans = parse(name, lambda: join_strips(plan_tables(find_parts(self._fetcher, head, entries))))
        self._require(plans)
        parts = self._fetcher.parts(entry)
        found = parse(name, lambda: self._states(parts)) if state else None
        job = self._job(parts[0]) if found is None else found[1]
        seen = _Seen(self._shards)
        if rows:
            write_rows(self._fetcher, self._wanted(plans), seen=seen.add, progress=self._progress)
        specs = [plan.spec for table, plan in plans.items() if table in self._shards and plan.is_single]
        return Loaded(
            info=entry.info,
            baseline=entries[0].info,
            job=job,
            state=found[0] if found is not None else None,
            missing=self._differing(plans, lambda shard, plan: (shard, plan)),
            unused=self._differing(plans, lambda shard, plan: (plan, shard)),
            newest_step=entries[-1].info.step,
            specs=tuple(spec for spec in specs if spec == self._shards[spec.name].spec),
            above=seen.above(),
            newest=self._ranks(entries[-1]) if state and entries[-1].info.kind is Kind.PRIORITY else (),
        )

    def _ranks(self, entry: Entry) -> tuple[RankState, ...]:
        parts = self._fetcher.parts(entry)
        return parse(
            entry.part_list.name,
            lambda: tuple(read_saved(self._fetcher, part, host=True).rank for part in parts),
        )

    def _wanted(self, plans: Mapping[str, WholeTable]) -> list[WantedRows]:
        return [
            WantedRows(
                plan=plan,
                columns={
                    column.name: ArrayColumn(place_in(shard.columns[column.name], plan.spec), shard.first)
                    for column in plan.spec.columns
                    if column.name in shard.columns
                },
                rows=shard.range,
            )
            for table, shard in self._shards.items()
            if shard.count
            for plan in plans[table].strips
        ]

    def _require(self, plans: Mapping[str, WholeTable]) -> None:
        """Raise ModelMismatch unless the run has the shards' tables, in their shapes and types."""
        for table, shard in self._shards.items():
            if table not in plans:
                known = ", ".join(plans) or "none"
                raise ModelMismatch(f"the checkpoint does not hold table {table!r}; its tables are {known}")
            stored, columns = plans[table].spec, {column.name: column for column in shard.spec.columns}
            if split := [name for name in plans[table].split_slots if name in columns]:
                raise ModelMismatch(
                    f"slot {split[0]!r} of table {table!r} was saved with one entry per row and column shard, of which "
                    "servers, which hold whole rows, have none. Resume without column-wise sharding and slots='mean', "
                    "save, and start from that"
                )
            if stored.rows != shard.rows:
                raise ModelMismatch(f"table {table!r} has {stored.rows} rows in the checkpoint, not {shard.rows}")
            for column in stored.columns:
                if column.name in columns and columns[column.name] != column:
                    own = columns[column.name]
                    raise ModelMismatch(
                        f"column {column.name!r} of table {table!r} is {column.dtype}{list(column.row_shape)} in the "
                        f"checkpoint and {own.dtype}{list(own.row_shape)} in the shard"
                    )

    def _differing(self, plans: Mapping[str, WholeTable], ordered: _Order) -> dict[str, tuple[str, ...]]:
        """The columns, by table, that one of the two has and the other lacks."""
        found = {}
        for table, shard in self._shards.items():
            having, lacking = ([column.name for column in each.spec.columns] for each in ordered(shard, plans[table]))
            if names := tuple(name for name in having if name not in lacking):
                found[table] = names
        return found

    def _states(self, parts: Manifests) -> tuple[LoadedState, JobState]:
        saved = [read_saved(self._fetcher, part, host=True) for part in parts]
        shared = shared_state(saved[0], parts[0])
        training = made_whole(shared.training, self._fetcher, parts, host=True)
        return LoadedState(training=training, ranks=tuple(each.rank for each in saved)), shared.job

    def _job(self, first: Manifest) -> JobState:
        """What the first part says of the job, without reading its tensors."""
        skeleton = read_tensors(self._fetcher, first, {SKELETON})[SKELETON]
        # The system gives memory for zeros only when somebody writes there.
        zeros = [HostTensor(np.zeros(spec.shape, array_dtype(spec.dtype)), spec.dtype) for spec in first.tensors[1:]]
        tree = decode_tree(bytes(skeleton), zeros, host=True)
        return shared_state(checked_state(tree, first), first).job


class _Seen:
    """Collects the rows that came from above the baseline, of each shard. Several threads tell."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = shards
        self._lock = threading.Lock()
        self._marks = {table: np.zeros(shard.count, dtype=np.bool_) for table, shard in shards.items()}
        self._whole: set[str] = set()

    def add(self, table: str, ids: Ids | None) -> None:
        if table not in self._shards:  # a strip: no delta of the whole table can depend on it
            return
        with self._lock:
            if ids is None:
                self._whole.add(table)
            else:
                places = ids - self._shards[table].first
                self._marks[table][places[(places >= 0) & (places < self._shards[table].count)]] = True

    def above(self) -> dict[str, Ids | None]:
        """The rows of each shard; None: all."""
        return {table: None if table in self._whole else np.flatnonzero(marks) for table, marks in self._marks.items()}
