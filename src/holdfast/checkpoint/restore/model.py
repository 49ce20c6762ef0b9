"""Writes a checkpoint into live tables, optimizers and extras."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests, lineage
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.columns import Ids
from holdfast.checkpoint.restore.saved_state import read_saved, shared_state
from holdfast.checkpoint.restore.table_match import require_same_tables, shape_problem
from holdfast.checkpoint.restore.tensors import Targets, restore_rows
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.state import RestoreReport, TrainingState
from holdfast.checkpoint.training.tables import Table
from holdfast.format.catalog import Entry
from holdfast.format.document import parse
from holdfast.format.state import JobState, RankState, SharedState
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import CheckpointInfo, TableSpec

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
        self._tables = {table.name: table for table in tables}
        self._state = state
        self._tracker = tracker
        self._marking = threading.Lock()

    def restore(
        self, head: Head, entry: Entry, *, rank: int = 0, strict: bool = True, progress: Progress | None = None
    ) -> Restored:
        """Restore one checkpoint. Raises DamagedData if any byte of it is off."""
        chain = lineage(head, entry.info.id)
        name = entry.part_list.name  # below which something is malformed, where planning trips over it
        plans = parse(name, lambda: plan_checkpoint(self._fetcher, head, entry.info.id))
        shared, own = parse(name, lambda: self._states(self._fetcher.parts(entry), rank))
        if strict:
            specs = {name: plan.spec for name, plan in plans.items()}
            require_same_tables(specs, self._live(), otherwise="restore what matches")
        self._tell(self._state.restore(shared.training, strict=strict), plans)
        targets = [(plan, self._targets(plan)) for name, plan in plans.items() if name in self._fitting(plans)]
        if self._tracker is not None:
            self._tracker.forget_all()
        restore_rows(self._fetcher, targets, seen=self._seen, progress=progress)
        for refused in self._state.finish(strict=strict):
            logger.warning("not restored: %s", refused)
        if self._tracker is not None:
            self._tracker.restored(_wholly_restored(targets))
        return Restored(info=entry.info, baseline=chain[0].info, rank=own, job=shared.job)

    def _tell(self, report: RestoreReport, plans: Mapping[str, TablePlan]) -> None:
        """Log what a non-strict restore skipped."""
        fitting, known = self._fitting(plans), {*plans, *report.became_tables}
        lacking = [*report.missing, *(name for name in self._tables if name not in known)]
        unknown = [*report.unexpected, *(name for name in plans if name not in self._tables)]
        differing = [f"{name} (shape differs)" for name in plans if name in self._tables and name not in fitting]
        left = {
            "not restored, missing from the checkpoint": lacking,
            "not restored, missing from the model": unknown,
            "not restored": [*report.changed, *differing],
        }
        for what, names in left.items():
            if names:
                logger.warning("%s: %s", what, ", ".join(names))

    def _states(self, parts: Manifests, rank: int) -> tuple[SharedState, RankState]:
        """What all ranks share, and what is this rank's own: nothing where the job had fewer ranks."""
        saved = {part.rank: read_saved(self._fetcher, part) for part in parts if part.rank in (0, rank)}
        own = saved[rank].rank if rank in saved else RankState(step=saved[0].rank.step)
        return shared_state(saved[0], parts[0]), own

    def _live(self) -> dict[str, Tensor]:
        return {name: table.parameter for name, table in self._tables.items()}

    def _fitting(self, plans: Mapping[str, TablePlan]) -> set[str]:
        live = self._live()
        return {name for name, plan in plans.items() if name in live and not shape_problem(plan.spec, live[name])}

    def _targets(self, plan: TablePlan) -> Targets:
        table = self._tables[plan.spec.name]
        slots = self._state.ensure_slots(table, plan.spec.slots)
        return {plan.spec.weight.name: table.parameter.data, **slots}

    def _seen(self, name: str, ids: Ids | None) -> None:
        if self._tracker is not None:
            with self._marking:
                self._tracker.rebuild(name, ids)


def _wholly_restored(targets: Sequence[tuple[TablePlan, Targets]]) -> list[TableSpec]:
    """The tables whose stored columns were all written into the live ones.

    The checkpoint's columns differ from those of all other tables, so no delta of these may depend on it.
    """
    return [plan.spec for plan, written in targets if all(column.name in written for column in plan.spec.columns)]
