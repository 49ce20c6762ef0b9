"""Writes a checkpoint into live tables, optimizers and extras."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests, lineage
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.strips import WholeTable, join_strips
from holdfast.checkpoint.restore.columns import Ids
from holdfast.checkpoint.restore.division import Slots, by_whole_name, held_columns, place_rows, split_problem
from holdfast.checkpoint.restore.reinsertion import Reinsertion
from holdfast.checkpoint.restore.rows import write_rows
from holdfast.checkpoint.restore.saved_state import read_saved, shared_state
from holdfast.checkpoint.restore.scattered import in_storage
from holdfast.checkpoint.restore.table_match import require_same_tables, shape_problem
from holdfast.checkpoint.restore.tensors import Targets
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.keyed_rows import KeyedRows, key_problem
from holdfast.checkpoint.training.state import RestoreReport, TrainingState
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ModelMismatch
from holdfast.format.catalog import Entry
from holdfast.format.document import parse
from holdfast.format.state import JobState, RankState, SharedState
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import CheckpointInfo

logger = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """Where a trainer is after a restore."""

    info: CheckpointInfo
    baseline: CheckpointInfo
    rank: RankState  # this rank's own
    job: JobState  # that of all ranks


class ModelRestorer:
    """Writes a checkpoint into live tables, optimizers and extras."""

    def __init__(
        self,
        store: Store,
        tables: Sequence[Table],
        state: TrainingState,
        tracker: Tracker | None,
        *,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._fetcher = Fetcher(store, runtime=runtime)
        self._tables = by_whole_name({table.name: table for table in tables})
        self._state = state
        self._tracker = tracker
        self._marking = threading.Lock()
        self._exact: set[str] = set()  # stored tables that are held here as they are stored

    def restore(
        self,
        head: Head,
        entry: Entry,
        *,
        rank: int = 0,
        strict: bool = True,
        slots: Slots = Slots.EXACT,
        progress: Progress | None = None,
    ) -> Restored:
        """Restore one checkpoint. Raises DamagedData if any byte of it is off."""
        chain = lineage(head, entry.info.id)
        name = entry.part_list.name  # below which something is malformed, where planning trips over it
        stored = parse(name, lambda: join_strips(plan_checkpoint(self._fetcher, head, entry.info.id)))
        shared, own = parse(name, lambda: self._states(self._fetcher.parts(entry), rank))
        if strict:
            specs = {name: whole.spec for name, whole in stored.items()}
            require_same_tables(specs, self._live(stored), otherwise="restore what matches")
            self._require_keys(stored)
        self._require_slots(stored, slots)
        moving = self._moving(stored)
        self._tell(self._state.restore(self._fitting_state(shared.training, stored), strict=strict), stored)
        placed = [
            place_rows(stored[name], table, self._targets(stored[name], table))
            for name in self._fitting(stored)
            for table in self._tables[name]
            if name not in moving
        ]
        if self._tracker is not None:
            self._tracker.forget_all()
        self._exact = {each.exact.name for each in placed if each.exact is not None}
        wanted = [rows for each in placed for rows in each.wanted]
        write_rows(self._fetcher, wanted, seen=self._seen, progress=progress)
        for mean in (mean for each in placed for mean in each.means):
            mean.write()
        self._find_keys(stored, moving, progress)
        for refused in self._state.finish(strict=strict):
            logger.warning("not restored: %s", refused)
        if self._tracker is not None:
            # The checkpoint's columns differ from those of all other tables: no delta of these may depend on it.
            self._tracker.restored([each.exact for each in placed if each.exact is not None])
        return Restored(info=entry.info, baseline=chain[0].info, rank=own, job=shared.job)

    def _require_slots(self, stored: Mapping[str, WholeTable], slots: Slots) -> None:
        """Refuse, before anything is written, slots that can only be restored inexactly, or say that they are."""
        for name in self._fitting(stored):
            for problem in {split_problem(stored[name], table) for table in self._tables[name] if self._keeps(table)}:
                if problem is not None and slots is Slots.EXACT:
                    raise ModelMismatch(problem)
                if problem is not None:
                    logger.warning("table %s: slots are restored inexactly, as the mean of column shards'", name)

    def _require_keys(self, stored: Mapping[str, WholeTable]) -> None:
        """Refuse tables that find rows in another way than the stored ones."""
        for name, whole in stored.items():
            for table in self._tables[name]:
                if problem := key_problem(whole.spec, table):
                    raise ModelMismatch(f"{problem}; strict=False skips it")

    def _fitting_state(self, training: Mapping[str, Any], stored: Mapping[str, WholeTable]) -> dict[str, Any]:
        """The state without that of keyed tables whose rows are not restored."""
        fitting = self._fitting(stored)
        tables = (table for name, tables in self._tables.items() if name not in fitting for table in tables)
        left = {table.state_name for table in tables if isinstance(table, KeyedRows)}
        modules = {name: state for name, state in training["modules"].items() if name not in left}
        return {**training, "modules": modules}

    def _moving(self, stored: Mapping[str, WholeTable]) -> dict[str, Reinsertion]:
        """Keyed tables that have another number of rows than the stored ones."""
        return {
            name: Reinsertion(self._fetcher, stored[name], table)
            for name in self._fitting(stored)
            for table in self._tables[name]
            if isinstance(table, KeyedRows) and table.rows != stored[name].spec.rows
        }

    def _find_keys(
        self, stored: Mapping[str, WholeTable], moving: Mapping[str, Reinsertion], progress: Progress | None
    ) -> None:
        """The rows are written: let keyed tables find them by their keys."""
        for name in self._fitting(stored):
            for table in self._tables[name]:
                if name in moving:
                    moving[name].write(self._targets(stored[name], table), progress=progress)
                elif isinstance(table, KeyedRows):
                    table.keyed.restored()

    def _keeps(self, table: Table) -> bool:
        """Whether it has an optimizer that keeps slots."""
        return table.optimizer is not None or bool(table.slots())

    def _tell(self, report: RestoreReport, stored: Mapping[str, WholeTable]) -> None:
        """Log what a non-strict restore skipped."""
        fitting, known = self._fitting(stored), {*stored, *report.became_tables}
        lacking = [*report.missing, *(name for name in self._tables if name not in known)]
        unknown = [*report.unexpected, *(name for name in stored if name not in self._tables)]
        differing = [
            f"{name} ({self._difference(stored[name], name)})"
            for name in stored
            if name in self._tables and name not in fitting
        ]
        left = {
            "not restored, missing from the checkpoint": lacking,
            "not restored, missing from the model": unknown,
            "not restored": [*report.changed, *differing],
        }
        for what, names in left.items():
            if names:
                logger.warning("%s: %s", what, ", ".join(names))

    def _difference(self, whole: WholeTable, name: str) -> str:
        has_keys = any(key_problem(whole.spec, table) for table in self._tables[name])
        return "keys differ" if has_keys else "shape differs"

    def _states(self, parts: Manifests, rank: int) -> tuple[SharedState, RankState]:
        """What all ranks share, and what is this rank's own: nothing where the job had fewer ranks."""
        saved = {part.rank: read_saved(self._fetcher, part) for part in parts if part.rank in (0, rank)}
        own = saved[rank].rank if rank in saved else RankState(step=saved[0].rank.step)
        shared = shared_state(saved[0], parts[0])
        return replace(shared, training=in_storage(shared.training, self._fetcher, parts)), own

    def _live(self, stored: Mapping[str, WholeTable]) -> dict[str, Tensor]:
        """Of each table a tensor with its shape and type; of a divided one, which is nowhere, without memory."""
        return {name: _as_whole(tables[0], stored.get(name)) for name, tables in self._tables.items()}

    def _fitting(self, stored: Mapping[str, WholeTable]) -> list[str]:
        live = self._live(stored)
        return [
            name
            for name, whole in stored.items()
            if name in live
            and not shape_problem(whole.spec, live[name])
            and not any(key_problem(whole.spec, table) for table in self._tables[name])
        ]

    def _targets(self, whole: WholeTable, table: Table) -> Targets:
        slots = self._state.ensure_slots(table, held_columns(whole, table))
        return {whole.spec.weight.name: table.parameter.data, **slots, **table.own_columns()}

    def _seen(self, name: str, ids: Ids | None) -> None:
        if self._tracker is not None and name in self._exact:
            with self._marking:
                self._tracker.rebuild(name, ids)


def _as_whole(table: Table, stored: WholeTable | None) -> Tensor:
    shape = table.whole_shape
    if stored is not None and isinstance(table, KeyedRows):
        shape = (stored.spec.rows, *shape[1:])  # keys go to other rows where it has another number of them
    elif table.extent is None:
        return table.parameter
    return torch.empty(shape, dtype=table.parameter.dtype, device="meta")
