"""An agent with few frames, for snapshots that leave a device: gives back the rows of the frames that it was sent.

Without pytest, which a GPU machine may lack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.draining import Draining
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.touched_rows import TouchedRows
from holdfast.checkpoint.track.tensor_sets import tensor_marks
from holdfast.checkpoint.wire.buffer import PAGE, FrameBuffer
from holdfast.checkpoint.wire.messages import STATE, FrameChunk, TableSlice
from holdfast.checkpoint.write.chunk_encoder import ChunkEncoder, KeyFrames
from holdfast.codec import Codec, to_json
from holdfast.codec.chunk import EncodedChunk, decode_column, dim_of, escapes_name, stored_columns
from holdfast.format.layout import IDS
from holdfast.format.manifest import table_spec_to_json
from holdfast.format.rows import chunk_ids
from holdfast.storage import MemoryStore
from holdfast.types import ColumnSpec, Since, TableSpec
from tests.intents import some_intent

FRAME_BYTES = 16 * PAGE


class Agent:
    """Has few frames, and frees one at every look at what it was sent."""

    def __init__(
        self,
        spec: TableSpec,
        codecs: dict[str, Codec],
        frames: int,
        frame_bytes: int = FRAME_BYTES,
        *,
        whole: bool = False,
    ) -> None:
        self.buffer = FrameBuffer.reserve(frames=frames, frame_bytes=frame_bytes)
        self._spec = spec
        self._codecs = codecs
        part = TableSlice(
            spec=table_spec_to_json(spec),
            start=0,
            stop=spec.rows,
            whole=whole,
            codecs={name: to_json(codec) for name, codec in codecs.items()} or None,
        )
        self._encoder = ChunkEncoder(some_intent(), [part], KeyFrames(MemoryStore(), in_memory=False))
        self._free = list(range(frames))
        self._sent: list[tuple[int, int, list[FrameChunk]]] = []
        self.chunks: list[tuple[FrameChunk, EncodedChunk | None, bytes]] = []
        self.state: dict[int, bytearray] = {}
        self.released = 0

    @property
    def free_frames(self) -> int:
        return len(self._free)

    def acquire_frame(self) -> int:
        while not self._free:
            self.work()
        return self._free.pop()

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        self._sent.append((frame, used, list(chunks)))

    def return_frame(self, frame: int) -> None:
        self._free.append(frame)

    def release(self) -> None:
        self.released += 1

    def work(self) -> None:
        """Write one frame."""
        frame, used, chunks = self._sent.pop(0)
        body = self.buffer.frame(frame)[:used]
        for chunk in chunks:
            data = body[chunk.offset : chunk.offset + chunk.length]
            if chunk.table == STATE:
                self._keep_state(chunk, data)
            else:
                encoded = self._encoder.encode(chunk, data)
                kept = encoded and replace(encoded, data=np.array(encoded.data.data), weights=encoded.weights.copy())
                self.chunks.append((chunk, kept, bytes(data)))
        body[:] = b"\xaa" * used
        self._free.append(frame)

    def finish(self) -> None:
        while self._sent:
            self.work()

    def rows(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Ids and columns of all chunks, as the agent stores them."""
        ids, found = [], {column.name: [] for column in self._spec.columns}
        for chunk, encoded, data in self.chunks:
            codec, escapes = ("exact", ()) if encoded is None else (encoded.codec, encoded.escapes)
            stored_ids = chunk.ids if encoded is None else encoded.ids
            body = memoryview(data) if encoded is None else memoryview(encoded.data).cast("B")
            columns = stored_columns(self._spec.columns, chunk.rows, stored_ids, codec, escapes)
            parts = {each.name: body[each.offset : each.offset + each.length] for each in columns}
            ids.append(chunk_ids(chunk.rows, chunk.first, stored_ids, parts.get(IDS, memoryview(b""))))
            assert ids[-1][0] == chunk.first and ids[-1][-1] == chunk.last
            for column in self._spec.columns:
                values: np.ndarray = np.frombuffer(parts[column.name], dtype=np.uint8)
                if self._codecs:
                    escaped = parts.get(escapes_name(column.name), memoryview(b""))
                    values = decode_column(column, self._codecs[column.name], parts[column.name], escaped, chunk.rows)
                found[column.name].append(values.view(np.float32).reshape(chunk.rows, dim_of(column)))
        if not ids:
            return torch.empty(0, dtype=torch.int64), {}
        return torch.from_numpy(np.concatenate(ids)), {
            name: torch.from_numpy(np.concatenate(each)) for name, each in found.items()
        }

    def _keep_state(self, chunk: FrameChunk, data: memoryview) -> None:
        at = 0
        for piece in chunk.state_pieces():
            own = self.state.setdefault(piece.tensor, bytearray())
            own[piece.start : piece.start + piece.length] = data[at : at + piece.length]
            at += -(-piece.length // 8) * 8


def table_spec(rows: int, dim: int) -> TableSpec:
    """With weights and a slot."""
    names = ("weight", "momentum_buffer")
    columns = tuple(ColumnSpec(name=name, dtype="F32", row_shape=(dim,)) for name in names)
    return TableSpec(name="table", rows=rows, columns=columns)


def touched(rows: int, ids: Tensor, start: int, stop: int) -> TouchedRows:
    """These rows, of a table of so many: half of them by a save that is not committed yet."""
    marks = tensor_marks(rows, ids.device)
    marks.live.add(ids[: len(ids) // 2])
    marks.begin()
    marks.live.add(ids[len(ids) // 2 :])
    return TouchedRows(touched=marks.touched(Since.LAST), start=start, stop=stop)


def captured(copy: TableCopy, *state: Tensor) -> Captured:
    """A snapshot of one table and some state."""
    return Captured(copies=(copy,), slices=(), tensors=state, tensor_specs=())


def drain_in_steps(draining: Draining, agent: Agent) -> None:
    """As the steps of a loop do."""
    for _ in range(10_000):
        if draining.advance():
            return agent.finish()
        if agent.released:
            agent.released = 0
            agent.finish()
    raise AssertionError("it never ends")
