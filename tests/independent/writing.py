"""Writes checkpoints in this process through the code that a trainer and its agent use, without an agent between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.tensor_filler import TensorFiller
from holdfast.checkpoint.training.tables import row_range
from holdfast.checkpoint.wire.buffer import PAGE, FrameBuffer
from holdfast.checkpoint.wire.messages import FrameChunk, TableSlice
from holdfast.checkpoint.write.committer import Committer
from holdfast.checkpoint.write.part_writer import PartWriter
from holdfast.format.catalog import Entry, Intent, Ref
from holdfast.format.dtypes import code_of
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import Manifest, table_spec_to_json
from holdfast.format.tree import encode_tree
from holdfast.policy import KeepAll, Retention
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import ColumnSpec, TableSpec

Tables = Mapping[str, Mapping[str, Tensor]]  # by name: every column of all rows, the weight first


def save(
    store: Store,
    chain: Chain,
    intent: Intent,
    tables: Tables,
    *,
    states: Sequence[object],
    touched: Mapping[str, Tensor] | None = None,
    frame_bytes: int = PAGE,
    retention: Retention = KeepAll(),  # noqa: B008 - frozen
    runtime: Runtime = SYSTEM,
) -> Entry:
    """Write and commit ``intent``, one state and one part per rank; of ``touched`` tables only those rows."""
    committer = Committer(store, chain, rank=0, retention=retention, runtime=runtime)
    committer.publish(intent)
    for rank in range(1, intent.world):
        write_part(store, intent, rank, tables, states[rank], touched or {}, frame_bytes)
    manifest, part = write_part(store, intent, 0, tables, states[0], touched or {}, frame_bytes)
    return committer.commit(intent, manifest, part)[0]


def write_part(
    store: Store,
    intent: Intent,
    rank: int,
    tables: Tables,
    state: object,
    touched: Mapping[str, Tensor],
    frame_bytes: int,
) -> tuple[Manifest, Ref]:
    """One rank's bundles and manifest."""
    tree = encode_tree(state)
    tensors = [torch.frombuffer(bytearray(tree.skeleton), dtype=torch.uint8), *tree.tensors]
    copies = [_copy(i, tables[name], touched.get(name), rank, intent.world) for i, name in enumerate(tables)]
    slices = [
        TableSlice(spec=table_spec_to_json(_spec(name, tables[name])), start=c.start, stop=c.stop, whole=c.ids is None)
        for name, c in zip(tables, copies, strict=True)
    ]
    writer = PartWriter(store, intent, rank, slices, [(code_of(t.dtype), tuple(t.shape)) for t in tensors])
    buffer = FrameBuffer.reserve(frames=1, frame_bytes=frame_bytes)
    filler = TensorFiller(cast(Any, _Sink(buffer, writer)), buffer)
    for index, tensor in enumerate(tensors):
        filler.add_state(index, tensor)
    for copy in copies:
        filler.add_table(copy)
    filler.flush()
    rows = sum(row_bytes(copy.columns) * (copy.stop - copy.start) for copy in copies)
    return writer.finish(rows + sum(tensor.numel() * tensor.element_size() for tensor in tensors))


class _Sink:
    """Where a snapshot's frames go: each is written before the next one is filled."""

    def __init__(self, buffer: FrameBuffer, writer: PartWriter) -> None:
        self._buffer = buffer
        self._writer = writer
        self._number = 0

    def acquire_frame(self) -> int:
        return 0

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        self._number += 1
        self._writer.write_frame(self._number, self._buffer.frame(frame)[:used], chunks)


def _copy(index: int, columns: Mapping[str, Tensor], ids: Tensor | None, rank: int, world: int) -> TableCopy:
    spec = _spec("", columns)
    start, stop = row_range(spec.rows, rank, world)
    mine = None if ids is None else ids[(ids >= start) & (ids < stop)]
    return TableCopy(
        index=index, columns=spec.columns, tensors=tuple(columns.values()), start=start, stop=stop, ids=mine
    )


def _spec(name: str, columns: Mapping[str, Tensor]) -> TableSpec:
    specs = tuple(
        ColumnSpec(name=column, dtype=code_of(tensor.dtype), row_shape=tuple(tensor.shape[1:]))
        for column, tensor in columns.items()
    )
    return TableSpec(name=name, rows=len(next(iter(columns.values()))), columns=specs)
