"""Rows that are encoded where they are, before they are copied.

Without a GPU the same is done with tables in memory: what decides is told that it is worth it there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import holdfast as hf
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.snapshot.tensor_filler import TensorFiller
from holdfast.checkpoint.wire.buffer import PAGE, FrameBuffer
from holdfast.checkpoint.wire.messages import FrameChunk, TableSlice
from holdfast.checkpoint.write.chunk_encoder import ChunkEncoder, KeyFrames
from holdfast.codec import Codec, to_json
from holdfast.codec.choice import table_codecs
from holdfast.codec.chunk import EncodedChunk, decode_column, dim_of, escapes_name, stored_columns
from holdfast.format.layout import IDS, rows_that_fit
from holdfast.format.manifest import table_spec_to_json
from holdfast.format.rows import chunk_ids
from holdfast.kernels.quantize import tensors
from holdfast.policy import Precision, Strategy
from holdfast.storage import MemoryStore
from holdfast.types import ColumnSpec, TableSpec
from tests.intents import some_intent
from tests.session.test_precision import FROM_STORE, PRECISIONS, SETTINGS, STRATEGIES, Run

FRAME_BYTES = 16 * PAGE


@pytest.fixture(scope="module", autouse=True)
def _where_they_are() -> Iterator[None]:
    """For all tests here, tables in memory are encoded before they are copied."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "is_cheap", lambda table, scheme: tensors.is_plain(table))
        yield


class Frames:
    """Takes frames over, and encodes their chunks as the agent does, before the frame is used again."""

    def __init__(self, spec: TableSpec, codecs: dict[str, Codec], frame_bytes: int = FRAME_BYTES) -> None:
        self.buffer = FrameBuffer.reserve(frames=1, frame_bytes=frame_bytes)
        part = TableSlice(
            spec=table_spec_to_json(spec),
            start=0,
            stop=spec.rows,
            whole=False,
            codecs={name: to_json(codec) for name, codec in codecs.items()},
        )
        self._encoder = ChunkEncoder(some_intent(), [part], KeyFrames(MemoryStore(), in_memory=False))
        self.chunks: list[tuple[FrameChunk, EncodedChunk]] = []
        self.frames = 0

    def acquire_frame(self) -> int:
        return 0

    def submit_frame(self, frame: int, used: int, chunks: Sequence[FrameChunk]) -> None:
        self.frames += 1
        body = self.buffer.frame(frame)[:used]
        for chunk in chunks:
            encoded = self._encoder.encode(chunk, body[chunk.offset : chunk.offset + chunk.length])
            assert encoded is not None
            self.chunks.append((chunk, replace(encoded, weights=encoded.weights.copy())))
        body[:] = b"\xaa" * used  # whoever still looks into it would see


def stored(spec: TableSpec, frames: Frames) -> tuple[dict[str, Tensor], Tensor]:
    """What all chunks give back, and the rows' ids."""
    found: dict[str, list[np.ndarray]] = {column.name: [] for column in spec.columns}
    ids = []
    for chunk, encoded in frames.chunks:
        columns = stored_columns(spec.columns, chunk.rows, encoded.ids, encoded.codec, encoded.escapes)
        data = {each.name: encoded.data.data[each.offset : each.offset + each.length] for each in columns}
        ids.append(chunk_ids(chunk.rows, chunk.first, encoded.ids, data.get(IDS, memoryview(b""))))
        codecs = table_codecs(spec, 2)
        for column in spec.columns:
            escapes = data.get(escapes_name(column.name), memoryview(b""))
            values = decode_column(column, codecs[column.name], data[column.name], escapes, chunk.rows)
            found[column.name].append(values.view(np.float32).reshape(chunk.rows, dim_of(column)))
    return {name: torch.from_numpy(np.concatenate(each)) for name, each in found.items()}, torch.from_numpy(
        np.concatenate(ids)
    )


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 6000),
    dim=st.sampled_from([5, 16, 64, 300]),
    odd_share=st.sampled_from([0.0, 0.0, 0.001, 0.1, 1.0]),
    by_ids=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_frames_of_records_hold_what_the_agent_would_have_made_of_the_rows(
    rows: int, dim: int, odd_share: float, by_ids: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(2 * rows, dim, generator=generator)
    odd = torch.rand(2 * rows, generator=generator) < odd_share
    weight[odd, 0] = torch.inf
    momentum = torch.randn(2 * rows, dim, generator=generator)
    spec = TableSpec(
        name="table",
        rows=2 * rows,
        columns=tuple(ColumnSpec(name=name, dtype="F32", row_shape=(dim,)) for name in ("weight", "momentum_buffer")),
    )
    codecs = dict(table_codecs(spec, 2))
    ids = torch.randperm(2 * rows, generator=generator)[:rows].sort().values if by_ids else None
    frames = Frames(spec, codecs)
    filler = TensorFiller(frames, frames.buffer)
    copy = TableCopy(
        index=0,
        columns=spec.columns,
        tensors=(weight, momentum),
        start=rows // 2,
        stop=rows // 2 + rows,
        ids=ids,
        codecs=codecs,
    )
    filler.add_table(copy)
    filler.flush()

    found, found_ids = stored(spec, frames)
    wanted_ids = torch.arange(copy.start, copy.stop) if ids is None else ids
    assert torch.equal(found_ids, wanted_ids)
    distances = []
    for name, tensor in (("weight", weight), ("momentum_buffer", momentum)):
        values = tensor[wanted_ids].numpy()
        codec = codecs[name]
        wanted = torch.from_numpy(codec.decode(codec.encode(values), dim))
        assert torch.equal(found[name].view(torch.int32), wanted.view(torch.int32))
        off = torch.where(torch.isfinite(wanted), wanted - tensor[wanted_ids], 0)
        distances.append(torch.linalg.vector_norm(off, dim=1))
    most = rows_that_fit(spec.columns, FRAME_BYTES, "U64" if by_ids else None)
    assert all(chunk.rows <= most for chunk, _ in frames.chunks)
    losses = sum(encoded.loss * chunk.rows for chunk, encoded in frames.chunks) / rows
    assert losses == pytest.approx(float(distances[0].mean()), rel=0.5, abs=0.02)
    assert all({*chunk.recorded} == {"weight", "momentum_buffer"} for chunk, _ in frames.chunks)


def test_records_take_a_fraction_of_the_frames() -> None:
    spec = TableSpec(name="table", rows=400_000, columns=(ColumnSpec(name="weight", dtype="F32", row_shape=(64,)),))
    weight = torch.randn(400_000, 64)
    frames = {}
    for codecs in ({}, table_codecs(spec, 2)):
        own = frames[len(codecs)] = Frames(spec, dict(table_codecs(spec, 2)), 64 * FRAME_BYTES)
        filler = TensorFiller(own, own.buffer)
        copy = TableCopy(
            index=0, columns=spec.columns, tensors=(weight,), start=0, stop=400_000, ids=None, codecs=dict(codecs)
        )
        filler.add_table(copy)
        filler.flush()
    assert frames[0].frames > 8 * frames[1].frames
    plain, encoded = (np.concatenate([each.weights.records for _, each in frames[number].chunks]) for number in (0, 1))
    assert np.array_equal(plain, encoded)


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize("strategy", [STRATEGIES["intermittent"], STRATEGIES["grid"]], ids=["intermittent", "grid"])
def test_every_checkpoint_gives_back_what_its_codecs_say(strategy: Strategy, precision: Precision) -> None:
    run = Run(MemoryStore(), strategy, precision, optimizer="adagrad")
    run.life(range(0, 4))
    run.check()


@pytest.mark.parametrize("settings_", [SETTINGS, FROM_STORE], ids=["in memory", "from the store"])
def test_differences_stand_on_a_baseline_of_records(settings_: hf.Settings) -> None:
    run = Run(MemoryStore(), hf.Consecutive(), hf.Bits(2, difference=True))
    run.life(range(0, 3), settings=settings_)
    run.life(range(3, 6), settings=settings_, resume=True)
    run.check()
