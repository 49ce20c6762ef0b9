"""Imports a foreign checkpoint as the first baseline of a run: weights only, in bounded memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.lease import WRITER, HeldLease
from holdfast.checkpoint.commit.takeover import claim
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.tensor_filler import TensorFiller
from holdfast.checkpoint.training.forms import form_of
from holdfast.checkpoint.training.slot_names import WEIGHT
from holdfast.checkpoint.transfer.foreign import ForeignTensor, Selection, open_foreign, select
from holdfast.checkpoint.wire.buffer import PAGE, FrameBuffer
from holdfast.checkpoint.wire.messages import FrameChunk, TableSlice
from holdfast.checkpoint.write.committer import Committer
from holdfast.checkpoint.write.part_writer import PartWriter
from holdfast.errors import ConfigurationError, RunError
from holdfast.format.catalog import Intent, checkpoint_id
from holdfast.format.dtypes import code_of
from holdfast.format.manifest import table_spec_to_json
from holdfast.format.state import JobState, RankState, SavedState, SharedState, weights_only_tree
from holdfast.format.tree import encode_tree
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


class _Writer:
    """A FrameSink with one frame, written in this process before it is filled again."""

    def __init__(self, part: PartWriter, buffer: FrameBuffer, progress: Progress | None) -> None:
        self._part = part
        self._buffer = buffer
        self._progress = progress
        self._written = 0

    def acquire_frame(self) -> int:
        """The frame, which is always free here."""
        return 0

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        """Write it; returns when it is durable."""
        self._part.write_frame(self._written, self._buffer.frame(frame)[:used], chunks)
        self._written += 1
        if self._progress:
            self._progress(used)


def _write(
    store: Store, chain: Chain, intent: Intent, selection: Selection, progress: Progress | None, runtime: Runtime
) -> CheckpointInfo:
    specs = [_spec(name, table) for name, table in selection.tables.items()]
    tensors = _state_tensors(intent.step, {name: found.whole() for name, found in selection.dense.items()})
    slices = [TableSlice(spec=table_spec_to_json(spec), start=0, stop=spec.rows, whole=True) for spec in specs]
    part = PartWriter(store, intent, 0, slices, [form_of(tensor) for tensor in tensors])
    committer = Committer(store, chain, rank=0, retention=KeepAll(), runtime=runtime)
    committer.publish(intent)
    buffer = FrameBuffer.reserve(frames=1, frame_bytes=_frame_bytes(selection))
    try:
        filler = TensorFiller(_Writer(part, buffer, progress), buffer)
        for index, tensor in enumerate(tensors):
            filler.add_state(index, tensor)
        for index, (spec, table) in enumerate(zip(specs, selection.tables.values(), strict=True)):
            for copy in _copies(index, spec, table):
                filler.add_table(copy)
        filler.flush()
    finally:
        buffer.close()
    full_bytes = sum(table.size_bytes for table in selection.tables.values()) + sum(each.nbytes for each in tensors)
    manifest, ref = part.finish(full_bytes)
    entry, _ = committer.commit(intent, manifest, ref)
    return entry.info


def _spec(name: str, table: ForeignTensor) -> TableSpec:
    column = ColumnSpec(name=WEIGHT, dtype=code_of(table.dtype), row_shape=table.shape[1:])
    return TableSpec(name=name, rows=table.rows, columns=(column,))


def _state_tensors(step: int, dense: Mapping[str, Tensor]) -> list[Tensor]:
    shared = SharedState(job=JobState(), training=weights_only_tree(dense))
    tree = encode_tree(SavedState(rank=RankState(step=step), shared=shared).to_tree())
    return [torch.frombuffer(bytearray(tree.skeleton), dtype=torch.uint8), *tree.tensors]


def _frame_bytes(selection: Selection) -> int:
    widest = max((table.size_bytes // max(1, table.rows) for table in selection.tables.values()), default=0)
    return -(-max(_FRAME_BYTES, 2 * widest) // PAGE) * PAGE


def _copies(index: int, spec: TableSpec, table: ForeignTensor) -> Iterator[TableCopy]:
    """The table in blocks of rows, so that no more of it than a block is in memory."""
    rows_at_once = max(1, _BLOCK_BYTES * table.rows // max(1, table.size_bytes))
    for start in range(0, table.rows, rows_at_once):
        stop = min(start + rows_at_once, table.rows)
        rows = table.read(start, stop)
        yield TableCopy(
            index=index, columns=spec.columns, tensors=(rows,), start=start, stop=stop, ids=None, origin=start
        )
