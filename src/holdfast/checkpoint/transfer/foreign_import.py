"""Imports a foreign checkpoint as the first baseline of a run: weights only, in bounded memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.lease import WRITER, HeldLease
from holdfast.checkpoint.commit.takeover import claim
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.training.slot_names import WEIGHT
from holdfast.checkpoint.transfer.foreign import ForeignTensor, Selection, open_foreign, select
from holdfast.checkpoint.transfer.lone_writer import LoneWriter, state_tensors
from holdfast.errors import ConfigurationError, RunError
from holdfast.format.catalog import Intent, checkpoint_id
from holdfast.format.dtypes import code_of
from holdfast.format.state import weights_only_tree
from holdfast.policy import KeepAll, Overlap
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import CheckpointInfo, ColumnSpec, Kind, TableSpec

_FRAME_BYTES = 32 * 2**20
_BLOCK_BYTES = 16 * 2**20  # rows read from the source at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What became of an imported checkpoint.

    Args:
        tables: Names of the embedding tables.
        dense: Names of the dense parameters.
        skipped: What was left out, and why.
        info: The baseline that was written.
    """

    tables: tuple[str, ...]
    dense: tuple[str, ...]
    skipped: Mapping[str, str]
    info: CheckpointInfo


def import_checkpoint(
    store: Store,
    source: Path,
    *,
    tables: Sequence[str] = ("*emb*",),
    step: int = 0,
    prefix: str = "",
    progress: Progress | None = None,
    runtime: Runtime = SYSTEM,
) -> ImportReport:
    """Commit the weights in ``source`` as the baseline of an empty run, at ``step``.

    ``tables`` are patterns of the names of embedding tables (without ``.weight``); whatever else the model holds is
    stored as dense weights. Only names that begin with ``prefix`` are taken, without it (``module.`` for instance).
    """
    if step < 0:
        raise ConfigurationError(f"step={step} is not valid; steps count from 0")
    selection = select(open_foreign(source), tables, prefix, where=str(source))
    writer = f"import by {socket.gethostname()}:{os.getpid()}"
    chain = Chain(store, writer=writer, runtime=runtime)
    _require_empty(chain.head(), store)
    term = _require_empty(claim(chain), store)
    intent = _intent(step, term, runtime)
    with HeldLease(store, WRITER, writer, [intent.checkpoint], runtime=runtime):
        info = _write(store, chain, intent, selection, progress, runtime)
    return ImportReport(
        tables=tuple(selection.tables), dense=tuple(selection.dense), skipped=selection.skipped, info=info
    )


def _require_empty(head: Head | None, store: Store) -> int:
    """The run's term, if it holds no checkpoint."""
    if head is not None and head.entries:
        newest = head.entries[-1].info.step
        raise RunError(
            f"{store.url} already holds checkpoints (up to step {newest}), but an import starts a new run: give it "
            "its own URL"
        )
    return head.catalog.term if head is not None else 0


def _intent(step: int, term: int, runtime: Runtime) -> Intent:
    return Intent(
        checkpoint=checkpoint_id(step, term, runtime.token()),
        step=step,
        term=term,
        kind=Kind.FULL,
        parent=None,
        base=None,
        world=1,
        created_s=runtime.wall_s(),
        overlap=Overlap.WAIT.value,
    )


def _write(
    store: Store, chain: Chain, intent: Intent, selection: Selection, progress: Progress | None, runtime: Runtime
) -> CheckpointInfo:
    specs = [_spec(name, table) for name, table in selection.tables.items()]
    tables = zip(specs, selection.tables.values(), strict=True)
    dense = {name: found.whole() for name, found in selection.dense.items()}
    writer = LoneWriter(store, chain, intent, retention=KeepAll(), progress=progress, runtime=runtime)
    return writer.write(
        state_tensors(intent.step, weights_only_tree(dense)),
        specs,
        (copy for index, (spec, table) in enumerate(tables) for copy in _copies(index, spec, table)),
    )


def _spec(name: str, table: ForeignTensor) -> TableSpec:
    column = ColumnSpec(name=WEIGHT, dtype=code_of(table.dtype), row_shape=table.shape[1:])
    return TableSpec(name=name, rows=table.rows, columns=(column,))


def _copies(index: int, spec: TableSpec, table: ForeignTensor) -> Iterator[TableCopy]:
    """The table in blocks of rows, so that no more of it than a block is in memory."""
    rows_at_once = max(1, _BLOCK_BYTES * table.rows // max(1, table.size_bytes))
    for start in range(0, table.rows, rows_at_once):
        stop = min(start + rows_at_once, table.rows)
        rows = table.read(start, stop)
        yield TableCopy(
            index=index, columns=spec.columns, tensors=(rows,), start=start, stop=stop, ids=None, origin=start
        )
