"""Writes one checkpoint from this process alone: no agent, no other ranks, one frame of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.tensor_filler import TensorFiller
from holdfast.checkpoint.training.forms import form_of
from holdfast.checkpoint.wire.buffer import PAGE, FrameBuffer
from holdfast.checkpoint.wire.messages import FrameChunk, TableSlice
from holdfast.checkpoint.write.committer import Committer
from holdfast.checkpoint.write.part_writer import PartWriter
from holdfast.format.catalog import Intent
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import table_spec_to_json
from holdfast.format.state import JobState, RankState, SavedState, SharedState
from holdfast.format.tree import encode_tree
from holdfast.policy import Retention
from holdfast.runtime import Runtime
from holdfast.storage import Store
from holdfast.types import CheckpointInfo, TableSpec

_FRAME_BYTES = 32 * 2**20


class LoneWriter:
    """Writes and commits one intent; the caller owns the run, and holds a lease."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        intent: Intent,
        *,
        retention: Retention,
        progress: Progress | None = None,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._intent = intent
        self._committer = Committer(store, chain, rank=0, retention=retention, runtime=runtime)
        self._progress = progress

    def write(
        self, state: Sequence[Tensor], specs: Sequence[TableSpec] = (), copies: Iterable[TableCopy] = ()
    ) -> CheckpointInfo:
        """``state`` is a state tree as ``state_tensors`` gives it, ``copies`` are all rows of all tables."""
        slices = [TableSlice(spec=table_spec_to_json(spec), start=0, stop=spec.rows, whole=True) for spec in specs]
        part = PartWriter(self._store, self._intent, 0, slices, [form_of(tensor) for tensor in state])
        self._committer.publish(self._intent)
        buffer = FrameBuffer.reserve(frames=1, frame_bytes=_frame_bytes(specs))
        try:
            filler = TensorFiller(_Sink(part, buffer, self._progress), buffer)
            for index, tensor in enumerate(state):
                filler.add_state(index, tensor)
            for copy in copies:
                filler.add_table(copy)
            filler.flush()
        finally:
            buffer.close()
        full_bytes = sum(row_bytes(spec.columns) * spec.rows for spec in specs) + sum(tensor.nbytes for tensor in state)
        entry, _ = self._committer.commit(self._intent, *part.finish(full_bytes))
        return entry.info


def state_tensors(step: int, training: Mapping[str, Any]) -> list[Tensor]:
    """The state of a job that holds ``training``, as the tensors to store."""
    shared = SharedState(job=JobState(), training=training)
    tree = encode_tree(SavedState(rank=RankState(step=step), shared=shared).to_tree())
    return [torch.frombuffer(bytearray(tree.skeleton), dtype=torch.uint8), *tree.tensors]


class _Sink:
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


def _frame_bytes(specs: Iterable[TableSpec]) -> int:
    widest = max((row_bytes(spec.columns) for spec in specs), default=0)
    return -(-max(_FRAME_BYTES, 2 * widest) // PAGE) * PAGE
