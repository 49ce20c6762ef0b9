"""Moves weights from the checkpoint they hold to a newer one: reads everything first, then writes it in one go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.follow.arena import Arena
from holdfast.checkpoint.follow.dense import DenseState, read_dense
from holdfast.checkpoint.follow.gate import Gate
from holdfast.checkpoint.follow.keys import Keys
from holdfast.checkpoint.follow.path import Applied, Reload, TableChanges, behind, next_checkpoint, standing
from holdfast.checkpoint.follow.staging import StagedRows, stage_rows
from holdfast.checkpoint.follow.targets import Target
from holdfast.checkpoint.follow.update import Lag, Update
from holdfast.checkpoint.read.fetcher import Fetcher, leased, lineage
from holdfast.checkpoint.read.outlines import find_parts
from holdfast.checkpoint.read.plan_builder import Part, plan_tables
from holdfast.checkpoint.read.strips import join_strips, place_in
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.tensors import restore_rows
from holdfast.errors import (
    CheckpointNotFound,
    ConfigurationError,
    DamagedData,
    HoldfastError,
    ModelMismatch,
    RunError,
    StorageError,
)
from holdfast.format.catalog import Entry, Ref
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import CheckpointInfo

logger = logging.getLogger("holdfast")

_ATTEMPTS = 3  # at a checkpoint that is dropped or left while it is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """What one update consists of."""

    applied: Applied
    reload: Reload | None
    dense: DenseState
    plans: Mapping[str, TablePlan]
    tables: Sequence[TableChanges]  # of those that have a place to go
    places: Mapping[str, Tensor]

    @property
    def read_bytes(self) -> int:
        return self.dense.read_bytes + sum(changes.read_bytes for changes in self.tables)


class Updater:
    """Keeps a target at a run's newest checkpoint, or steps it through each of them. Thread-safe."""

    def __init__(
        self,
        store: Store,
        target: Target,
        *,
        gate: Gate | None = None,
        each: bool = False,
        staging_bytes: int = 2**30,
        spill: Path | None = None,
        baseline_in_memory: bool = True,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._store = store
        self._target = target
        self._gate = gate or Gate()
        self._each = each
        self._staging_bytes = staging_bytes
        self._spill = spill
        self._runtime = runtime
        self._chain = Chain(store, runtime=runtime)
        self._one_at_a_time = threading.Lock()
        self._head: Head | None = None
        self._applied: Applied | None = None
        self._parts: dict[Ref, Sequence[Part]] = {}  # of what the applied checkpoint stands on
        self._keys = Keys(keep=baseline_in_memory)
        self._told: set[str] = set()

    @property
    def checkpoint(self) -> CheckpointInfo | None:
        """What the weights hold; None for nothing whole."""
        applied = self._applied
        return applied.info if applied else None

    @property
    def lag(self) -> Lag:
        """How far they are behind."""
        head, applied = self._head, self._applied
        live = [entry.info for entry in head.entries if not entry.info.abandoned] if head else []
        return Lag(
            checkpoints=behind(head, applied) if head else 0,
            steps=max(0, live[-1].step - (applied.info.step if applied else 0)) if live else 0,
            age_s=max(0.0, self._runtime.wall_s() - applied.info.created_s) if applied else None,
        )

    def update(self) -> Update | None:
        """Check once and apply what is new; None if nothing is.

        If it fails, the error says what the weights hold, and the next call retries.
        """
        with self._one_at_a_time:
            try:
                return self._update()
            except ConfigurationError:
                raise
            except (DamagedData, StorageError, RunError) as error:
                raise self._explained(error) from error

    def _update(self) -> Update | None:
        for attempt in range(_ATTEMPTS):
            head = self._look()
            entry = next_checkpoint(head, self._applied, each=self._each) if head else None
            if entry is None:
                return None
            try:
                with self._reading(entry) as (fetcher, now):
                    if not now.by_id[entry.info.id].info.abandoned:
                        return self._bring_to(fetcher, now, now.by_id[entry.info.id])
            except CheckpointNotFound:
                if attempt == _ATTEMPTS - 1:
                    raise
        return None

    def _look(self) -> Head | None:
        head = self._chain.head(skip_damaged=True)
        if head is self._head and self._chain.is_gone():
            # Deleted, and perhaps written anew: then catalogs are counted from 1 again.
            self._chain = Chain(self._store, runtime=self._runtime)
            head = self._chain.head(skip_damaged=True)
        for name in head.damaged if head else ():
            self._tell(f"{name} cannot be read; its commit cannot be followed")
        if head is None or not head.entries:
            self._tell(f"{self._store.url} holds no checkpoint yet: waiting for the first")
        self._head = head
        return head

    @contextmanager
    def _reading(self, entry: Entry) -> Iterator[tuple[Fetcher, Head]]:
        """A checkpoint, protected from deletion by a lease if one can be written."""
        with leased(
            self._store,
            self._require_head,
            lambda head: _needed(head, entry),
            warn=self._tell,
            runtime=self._runtime,
        ) as head:
            yield Fetcher(self._store, runtime=self._runtime), head

    def _require_head(self) -> Head:
        head = self._chain.head(skip_damaged=True)
        if head is None:
            raise CheckpointNotFound(f"{self._store.url} no longer holds a run")
        return head

    def _bring_to(self, fetcher: Fetcher, head: Head, entry: Entry) -> Update:
        changes = self._changes(fetcher, head, entry)
        previous = self.checkpoint
        if changes.reload and (previous is None or not self._target.is_served):
            rows, pause_s = self._load(fetcher, changes)
        else:
            rows, pause_s = self._apply(fetcher, changes)
        return Update(
            checkpoint=entry.info,
            previous=previous,
            rows=rows,
            read_bytes=changes.read_bytes,
            reload=changes.reload,
            pause_s=pause_s,
        )

    def _changes(self, fetcher: Fetcher, head: Head, entry: Entry) -> _Changes:
        chain = lineage(head, entry.info.id)
        base = standing(head, self._applied, entry)
        newest = fetcher.parts(entry)  # whole, for its dense state
        history = find_parts(fetcher, head, chain, {**self._parts, entry.part_list: newest})
        self._parts = {each.part_list: parts for each, parts in zip(chain, history, strict=True)}
        plans = plan_tables(history)
        wholes = self._target.fit({name: whole.spec for name, whole in join_strips(plans).items()})
        places = {  # of a strip: some columns of its table's weights
            name: place_in(wholes[plan.spec.table], plan.spec)
            for name, plan in plans.items()
            if plan.spec.table in wholes
        }
        kept = 0 if isinstance(base, Reload) else base
        return _Changes(
            applied=Applied(info=entry.info, lineage=tuple(each.info.id for each in chain)),
            reload=base if isinstance(base, Reload) else None,
            dense=read_dense(fetcher, newest),
            plans=plans,
            tables=[TableChanges.above(plans[name], len(chain), kept) for name in places],
            places=places,
        )

    def _load(self, fetcher: Fetcher, changes: _Changes) -> tuple[int, float]:
        """Read all rows directly into their places, which hold nothing of use yet."""
        targets = [
            (plan, {plan.spec.weight.name: changes.places[name]})
            for name, plan in changes.plans.items()
            if name in changes.places
        ]
        pause_s = self._write(changes, lambda: restore_rows(fetcher, targets))
        return sum(plan.spec.rows for plan, _ in targets), pause_s

    def _apply(self, fetcher: Fetcher, changes: _Changes) -> tuple[int, float]:
        """Read what changed, then write it."""
        with Arena(self._staging_bytes, self._spill) as arena:
            staged = stage_rows(fetcher, changes.tables, arena, self._keys)
            pause_s = self._write(changes, lambda: _write_rows(staged, changes.places))
            return sum(len(each.rows) for each in staged), pause_s

    def _write(self, changes: _Changes, write_rows: Callable[[], None]) -> float:
        """Write the dense part and the rows while nothing is served; how long that was."""
        devices = self._target.queues()
        asked_s = self._runtime.monotonic_s()
        with self._gate.excluding(), torch.inference_mode():
            try:
                _wait_for(devices)  # batches that were served may still be in their queues
                self._target.write_dense(changes.dense.tree)
                write_rows()
                _wait_for(devices)
            except ModelMismatch:  # raised before anything is written
                raise
            except BaseException:
                self._applied = None
                raise
            self._applied = changes.applied
        return self._runtime.monotonic_s() - asked_s

    def _explained(self, error: HoldfastError) -> HoldfastError:
        """The same error, with what became of the weights."""
        applied = self._applied
        if applied is not None:
            then = f"the model still holds step {applied.info.step} in full; the next update will retry"
        elif not self._target.is_served:
            then = "the next update will reload everything"
        else:
            then = "the model does not hold a complete checkpoint: do not serve from it until an update succeeds"
        if isinstance(error, DamagedData):
            return DamagedData(error.object_name, f"{error.what}; {then}")
        return type(error)(f"{error}; {then}")

    def _tell(self, message: str) -> None:
        """Warn, once of each thing."""
        if message not in self._told:
            self._told.add(message)
            logger.warning(message)


def _needed(head: Head, entry: Entry) -> tuple[Entry, ...]:
    if entry.info.id not in head.by_id:
        raise CheckpointNotFound(f"the checkpoint of step {entry.info.step} has just been dropped")
    return lineage(head, entry.info.id)


def _wait_for(devices: set[torch.device]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)


def _write_rows(staged: Sequence[StagedRows], places: Mapping[str, Tensor]) -> None:
    for rows in staged:
        rows.write(places[rows.table])
