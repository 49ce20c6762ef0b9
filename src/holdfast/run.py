"""Run: everything under one URL, for reading, verifying and pruning, during or after the training."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import Clocks, annotate, prune, settle_doubts
from holdfast.checkpoint.commit.collect import (
    Collected,
    collect_catalogs,
    collect_dropped,
    collect_orphans,
    garbage_objects,
)
from holdfast.checkpoint.commit.space import RoomMaker
from holdfast.checkpoint.inspect.grid_picture import GridPicture, draw_grid
from holdfast.checkpoint.inspect.history import read_history
from holdfast.checkpoint.inspect.prune_preview import Verdict, judge
from holdfast.checkpoint.inspect.skeleton import read_skeleton
from holdfast.checkpoint.inspect.stored_precision import StoredRows, stored_rows
from holdfast.checkpoint.inspect.summary import RunSummary, all_leases, summarize
from holdfast.checkpoint.inspect.verify import Problem, Verification, verify_run
from holdfast.checkpoint.ranks.agreement import Agreement, Alone
from holdfast.checkpoint.ranks.process_group import find_agreement
from holdfast.checkpoint.ranks.sharded_tables import with_dtensors
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher, find_checkpoint, leased, lineage
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.strips import join_strips, whole_specs
from holdfast.checkpoint.read.table_plan import RestorePlan, TablePlan
from holdfast.checkpoint.restore.division import as_slots
from holdfast.checkpoint.restore.model import ModelRestorer
from holdfast.checkpoint.restore.partial import newest_entries, plan_newest
from holdfast.checkpoint.restore.row_lookup import lookup_table
from holdfast.checkpoint.restore.saved_state import read_saved, shared_state
from holdfast.checkpoint.restore.scattered import made_whole
from holdfast.checkpoint.restore.state_tensors import read_state
from holdfast.checkpoint.trainer.arguments import Declared, as_models, as_optimizers
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.checkpoint.training.dtensors import SwappedParameters, has_dtensors
from holdfast.checkpoint.training.keyed import KeyedTable
from holdfast.checkpoint.training.keyed_rows import as_keyed
from holdfast.checkpoint.training.state import TrainingState, dense_weights
from holdfast.checkpoint.training.supported import require_held
from holdfast.checkpoint.training.tables import find_tables
from holdfast.checkpoint.transfer import foreign_import
from holdfast.checkpoint.transfer.export import TableDifference, difference, export_file
from holdfast.checkpoint.transfer.foreign_import import ImportReport
from holdfast.cluster.record import JobRecord, read_jobs
from holdfast.errors import CheckpointNotFound, ConfigurationError, HoldfastError, RunError
from holdfast.events import HistoryEvent
from holdfast.format.catalog import Entry
from holdfast.integrations.torchrec import find_divided, find_keyed, is_divided
from holdfast.opening import open_patiently, read_head
from holdfast.policy import Retention
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.retry import RetryingStore
from holdfast.types import CheckpointInfo, TableSpec

logger = logging.getLogger("holdfast")


def open_run(url: str | os.PathLike[str] | Store, *, options: Mapping[str, str] | None = None) -> Run:
    """Open a run for reading. Nothing is written except a lease while something is being read.

    Args:
        url: The run: a path or URL as of ``Checkpointer``, or a ``Store`` object.
        options: Object store client options, such as ``region`` or ``endpoint``.
    """
    return Run(open_patiently(url, options))


def import_checkpoint(
    url: str | os.PathLike[str] | Store,
    source: str | os.PathLike[str],
    *,
    tables: Sequence[str] = ("*emb*",),
    step: int = 0,
    prefix: str = "",
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> ImportReport:
    """Make the weights of a ``torch.save``, safetensors or DCP checkpoint the first baseline of an empty run.

    A ``Checkpointer`` on ``url`` then resumes from these weights, with fresh optimizers. Code in the file is never run.

    Args:
        url: The empty run to write to.
        source: The file or, for DCP, the folder to read.
        tables: Patterns of the embedding tables' names, without ``.weight``.
        step: The step from which training will count.
        prefix: Take only names with this prefix, such as ``module.``, and strip it.
        options: Object store client options, such as ``region`` or ``endpoint``.
        progress: Called periodically with the bytes written since the last call.

    Returns:
        Which tables and dense parameters were imported, and what was left out and why.
    """
    return foreign_import.import_checkpoint(
        open_patiently(url, options), Path(source), tables=tables, step=step, prefix=prefix, progress=progress
    )


class Run:
    """The checkpoints under one URL, to list, read, verify and prune, during or after the training.

    Create it with ``open_run``. A checkpoint is named by its step or, if two timelines share a step, by its id. While
    it is being read, a lease keeps others from deleting it.

    Args:
        store: Where the run's objects are.
    """

    _runtime: ClassVar[Runtime] = SYSTEM  # holdfast.testing.runtime replaces it

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[str] = set()  # damaged catalogs, each warned of once
        self._writer = f"{socket.gethostname()}:{os.getpid()}"
        self._chain = Chain(store, writer=self._writer, runtime=self._runtime)

    @property
    def url(self) -> str:
        """The URL of the run."""
        return self._store.url

    @property
    def store(self) -> Store:
        """The store that holds its objects."""
        return self._store

    def head(self) -> Head:
        """The newest catalog; raises CheckpointNotFound on an empty run."""
        return read_head(self._chain, self._store.url, told=self._told)

    def checkpoints(self) -> list[CheckpointInfo]:
        """Every checkpoint that is kept, oldest first, abandoned timelines included."""
        head = self._chain.head(skip_damaged=True)
        return [entry.info for entry in head.entries] if head else []

    def priority_saves(self) -> list[CheckpointInfo]:
        """Priority saves since the newest checkpoint, oldest first. The next checkpoint drops them."""
        head = self._chain.head(skip_damaged=True)
        return [entry.info for entry in head.catalog.priority] if head else []

    def summary(self, step: int | str | None = None) -> RunSummary:
        """The run and one of its checkpoints at a glance.

        Args:
            step: The checkpoint's step or id. None: the newest one.
        """
        leases = all_leases(self._store)  # before we hold one ourselves
        with self._reading(step) as (fetcher, head, entry):
            waiting = garbage_objects(self._store, head.garbage)
            return summarize(self.url, fetcher, head, entry, leases=leases, waiting=waiting)

    def grid(self, step: int | str | None = None) -> GridPicture:
        """The increments that a checkpoint depends on, and what became of their rows.

        Args:
            step: The checkpoint's step or id. None: the newest one.
        """
        with self._reading(step) as (fetcher, head, entry):
            entries = lineage(head, entry.info.id)
            parts = [fetcher.parts(each) for each in entries]
            return draw_grid([each.info for each in entries], parts, [len(each.rounds) for each in entries])

    def history(self) -> tuple[HistoryEvent, ...]:
        """When trainers started the run, took it over and went back, as far as the run still records it."""
        return read_history(self.head())

    def jobs(self) -> tuple[JobRecord, ...]:
        """What happened to the jobs of a ``Cluster`` on this run, and how fast they went, oldest first."""
        return read_jobs(self._store)

    def stored(self, step: int | str | None = None) -> tuple[StoredRows, ...]:
        """How precisely the rows that a checkpoint depends on are stored.

        Args:
            step: The checkpoint's step or id. None: the newest one.
        """
        with self._reading(step) as (fetcher, head, entry):
            entries = lineage(head, entry.info.id)
            return stored_rows([each.info for each in entries], [fetcher.parts(each) for each in entries])

    def tables(self, step: int | str | None = None) -> list[TableSpec]:
        """The tables of a checkpoint: names, rows and columns.

        Args:
            step: The checkpoint's step or id. None: the newest one.
        """
        with self._reading(step) as (fetcher, _, entry):
            parts = fetcher.parts(entry)
            stored = {table.spec.name: table.spec for part in parts for table in part.tables}
            return list(whole_specs(stored.values()).values())

    def restore(
        self,
        step: int | str | None = None,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Declared | Sequence[Declared] = (),
        extra: Mapping[str, Any] | None = None,
        tables: Mapping[str, nn.Parameter] | None = None,
        keyed: Mapping[str, KeyedTable] | None = None,
        strict: bool = True,
        slots: Literal["exact", "mean"] = "exact",
        progress: Progress | None = None,
    ) -> CheckpointInfo:
        """Read a checkpoint into a model and, if passed, its optimizers; the run is not changed.

        All ranks call this together for a model that is divided over them, as DTensors or by TorchRec, whose fused
        optimizers are restored too.

        Args:
            step: The checkpoint's step or id. None: the newest one.
            model: The model, or several by name, as in training.
            optimizer: The optimizers, as in training. Without them only weights are restored.
            extra: Additional objects to restore by name, as in training.
            tables: Additional embedding tables by name, as in training.
            keyed: Tables whose rows are found by keys, by name, as in training.
            strict: False restores what matches by name and shape and warns about the rest.
            slots: What to do with sums that a plan of TorchRec kept per row and column shard: ``"exact"`` refuses them
                where the column shards differ, ``"mean"`` takes their mean.
            progress: Called periodically with the bytes read since the last call.
        """
        models, optimizers = as_models(model), as_optimizers(optimizer)
        in_parts = has_dtensors(models)
        agreement = find_agreement(Settings().ranks_s) if in_parts or is_divided(models) else Alone()
        divided, swapped = find_divided(models, agreement), SwappedParameters(models)
        if in_parts:
            divided = with_dtensors(models, tables or {}, swapped, divided, agreement)
        require_held(models, divided)
        by_key = (*as_keyed(keyed), *find_keyed(models))
        found = find_tables(models, optimizers, tables or {}, divided.tables, by_key)
        state = TrainingState(models, optimizers, extra or {}, found, divided, swapped)
        with self._reading(self._agreed(step, agreement)) as (_, head, entry):
            restorer = ModelRestorer(self._store, found, state, None, runtime=self._runtime)
            return restorer.restore(head, entry, strict=strict, slots=as_slots(slots), progress=progress).info

    def read_rows(self, table: str, ids: Tensor | Sequence[int], *, step: int | str | None = None) -> dict[str, Tensor]:
        """Single rows of a table, weight and slots, reading only the blocks that hold them.

        Args:
            table: The table's name.
            ids: The rows' numbers; the result is in their order.
            step: The checkpoint's step or id. None: the newest one.
        """
        wanted = torch.as_tensor(ids, dtype=torch.int64).reshape(-1)
        with self._reading(step) as (fetcher, head, entry):
            tables = join_strips(self._plans(fetcher, head, entry))
            if table not in tables:
                raise RunError(f"checkpoint {entry.info.id} holds no table {table!r}; it holds {', '.join(tables)}")
            return lookup_table(fetcher, tables[table], wanted)

    def read_newest_rows(self, table: str, ids: Tensor | Sequence[int]) -> dict[str, Tensor]:
        """Single rows as last saved, by the newest checkpoint or a priority save after it.

        They are not from a single step: this is what partial recovery restores from.

        Args:
            table: The table's name.
            ids: The rows' numbers; the result is in their order.
        """
        wanted = torch.as_tensor(ids, dtype=torch.int64).reshape(-1)
        with leased(self._store, self.head, newest_entries, runtime=self._runtime) as head:
            fetcher = Fetcher(self._store, runtime=self._runtime)
            tables = join_strips(plan_newest(fetcher, head, newest_entries(head)))
            if table not in tables:
                raise RunError(f"{self.url} holds no table {table!r}; it holds {', '.join(tables)}")
            return lookup_table(fetcher, tables[table], wanted)

    def restore_plan(self, step: int | str | None = None) -> RestorePlan:
        """What restoring a checkpoint would read for the tables: from where and how much.

        Args:
            step: The checkpoint's step or id. None: the newest one.
        """
        with self._reading(step) as (fetcher, head, entry):
            return RestorePlan.of(entry.info, self._plans(fetcher, head, entry))

    def state(self, step: int | str | None = None, *, rank: int = 0, tensors: bool = True) -> Any:
        """The state tree of a checkpoint: everything but table rows.

        Args:
            step: The checkpoint's step or id. None: the newest one.
            rank: Which rank's state; each rank has its own random numbers and reader position.
            tensors: False returns zeros in place of tensors, which is faster.
        """
        with self._reading(step) as (fetcher, _, entry):
            parts = {part.rank: part for part in fetcher.parts(entry)}
            if rank not in parts:
                raise RunError(f"checkpoint {entry.info.id} was written by ranks {sorted(parts)}, not {rank}")
            if not tensors:
                return read_skeleton(fetcher, parts[rank])
            return made_whole(read_state(fetcher, parts[rank]), fetcher, tuple(parts.values()))

    def export(
        self,
        path: str | os.PathLike[str],
        step: int | str | None = None,
        *,
        slots: bool = False,
        format: Literal["dcp"] | None = None,
        progress: Progress | None = None,
    ) -> CheckpointInfo:
        """Write a checkpoint's weights as one file, under their state_dict names, or all of it as a DCP folder.

        Args:
            path: The file; its name ends with ``.safetensors`` or ``.pt``. With ``format``, a folder that is created.
            step: The checkpoint's step or id. None: the newest one.
            slots: Also write the tables' optimizer slots, to a file.
            format: "dcp" for a folder of ``torch.distributed.checkpoint``. None: a file, by its name.
            progress: Called periodically with the bytes read since the last call.
        """
        if format not in (None, "dcp"):
            raise ConfigurationError(f"format={format!r} is not valid; pass 'dcp', or None for a file")
        with self._reading(step) as (fetcher, head, entry):
            if format == "dcp":
                from holdfast.integrations.dcp.export import export_dcp
                from holdfast.integrations.dcp.reader import open_contents

                export_dcp(Path(path), open_contents(fetcher, head, entry, root="model"), progress=progress)
                return entry.info
            tables = join_strips(self._plans(fetcher, head, entry))
            parts = fetcher.parts(entry)
            stored = dense_weights(shared_state(read_saved(fetcher, parts[0]), parts[0]).training)
            dense = made_whole(stored, fetcher, parts)
            export_file(Path(path), fetcher, tables, dense, slots=slots, progress=progress)
            return entry.info

    def diff(self, first: int | str, second: int | str) -> list[TableDifference]:
        """How the tables changed between two checkpoints, bit for bit.

        Args:
            first: The step or id of one checkpoint.
            second: The step or id of the other.
        """
        with self._reading(first) as (fetcher, head, a), self._reading(second) as (_, _, b):
            before, after = (join_strips(self._plans(fetcher, head, each)) for each in (a, b))
            with tempfile.TemporaryDirectory() as scratch:
                return list(difference(fetcher, before, after, Path(scratch)))

    def verify(self, *, progress: Progress | None = None) -> list[Problem]:
        """Read every byte of every kept checkpoint, compare it with its checksum, and return the problems found.

        Suspect checkpoints, which a ``resume()`` could not restore, are cleared or condemned in the run.

        Args:
            progress: Called periodically with the bytes read since the last call.
        """
        found = verify_run(self._store, self._chain, progress=progress, runtime=self._runtime)
        self._settle(found)
        return list(found.problems)

    def _settle(self, found: Verification) -> None:
        """Clear or condemn the checkpoints that a resume could not restore."""
        if not found.whole:
            return
        try:
            if verdicts := found.verdicts(self.head()):
                self._chain.commit(settle_doubts(verdicts))
        except HoldfastError as error:
            logger.warning("%s: suspect checkpoints stay suspect, the run could not be written: %s", self.url, error)

    def annotate(self, step: int | str, **metrics: float) -> None:
        """Attach metrics to a kept checkpoint.

        Args:
            step: The checkpoint's step or id.
            metrics: Numbers by name; existing names are replaced.
        """
        entry = find_checkpoint(self._chain.head(), step, where=self.url)
        self._chain.commit(annotate(entry.info.id, metrics, term=None))

    def plan_prune(self, retention: Retention) -> list[Verdict]:
        """Whether ``prune`` would drop or keep each checkpoint, and why; changes nothing.

        Args:
            retention: What to keep.
        """
        return judge([entry.info for entry in self.head().entries], retention, self._runtime.wall_s())

    def prune(self, retention: Retention, *, grace_s: float = 600.0) -> tuple[list[CheckpointInfo], Collected]:
        """Drop the checkpoints that a policy does not keep, then delete objects that nothing refers to.

        Args:
            retention: What to keep. The newest checkpoint and everything a kept one depends on always stay.
            grace_s: Delete only what was dropped longer ago than this, so that readers can finish.

        Returns:
            The checkpoints that were dropped, and what was deleted.
        """
        before = self._chain.head()  # raises on a damaged one: nothing is dropped while the newest state is unknown
        if before is None:
            raise CheckpointNotFound(f"{self._store.url} holds no run yet (no catalog): check the URL")
        clocks = Clocks(wall_s=self._runtime.wall_s, store_s=self._store.now_s)
        make_room = RoomMaker(self._store, grace_s=grace_s, runtime=self._runtime)
        roomy = RetryingStore(self._store, total_s=0.0, make_room=make_room, runtime=self._runtime)
        chain = Chain(roomy, writer=self._writer, runtime=self._runtime)
        after = chain.commit(prune(retention, term=None, clocks=clocks))
        term = after.catalog.term
        dropped = [entry.info for entry in before.entries if entry.info.id not in after.by_id]
        collected = collect_dropped(self._store, self._chain, term=term, grace_s=grace_s)
        collected += collect_orphans(self._store, self._chain, term=term, grace_s=grace_s)
        collected += collect_catalogs(self._store, self._chain, term=term)
        return dropped, collected

    def _agreed(self, step: int | str | None, agreement: Agreement) -> int | str | None:
        """The checkpoint that all ranks restore: a moment later, on another rank, the newest may be another one."""
        if agreement.world == 1:
            return step
        found: str | None = None
        problem: HoldfastError | None = None
        try:
            found = find_checkpoint(self.head(), step, where=self.url).info.id
        except HoldfastError as error:
            problem = error
        found = agreement.broadcast(found)
        if found is None:
            raise problem or CheckpointNotFound(f"{self.url}: rank 0 cannot read this checkpoint; its error says why")
        return found

    def _plans(self, fetcher: Fetcher, head: Head, entry: Entry) -> dict[str, TablePlan]:
        return plan_checkpoint(fetcher, head, entry.info.id)

    @contextmanager
    def _reading(self, step: int | str | None) -> Iterator[tuple[Fetcher, Head, Entry]]:
        """A checkpoint, protected from deletion: lease first, then look again whether it is still there."""
        entry = find_checkpoint(self.head(), step, where=self.url)
        needed = partial(self._needed, info=entry.info)
        with leased(self._store, self.head, needed, runtime=self._runtime) as head:
            yield Fetcher(self._store, runtime=self._runtime), head, head.by_id[entry.info.id]

    def _needed(self, head: Head, info: CheckpointInfo) -> tuple[Entry, ...]:
        if info.id not in head.by_id:
            raise CheckpointNotFound(f"the checkpoint of step {info.step} has just been dropped")
        return lineage(head, info.id)
