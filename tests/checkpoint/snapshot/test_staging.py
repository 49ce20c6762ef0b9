"""Snapshots that are taken in a buffer of their device and leave it while training goes on; without a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.checkpoint.snapshot.draining import Draining
from holdfast.checkpoint.snapshot.staging import Staging
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.codec.choice import table_codecs
from holdfast.errors import SaveFailed
from holdfast.kernels.quantize import tensors
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams, OutOfOrder
from tests.checkpoint.snapshot.staging_agent import (
    FRAME_BYTES,
    Agent,
    captured,
    drain_in_steps,
    table_spec,
    touched,
)

DEVICE = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _where_they_are() -> Iterator[None]:
    """Tables in memory are encoded before they are copied, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "is_cheap", lambda table, scheme: tensors.is_plain(table))
        yield


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 1500),
    dim=st.sampled_from([5, 16, 64, 300]),
    bits=st.sampled_from([None, 2, 3, 8]),
    share=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    odd_share=st.sampled_from([0.0, 0.0, 0.001, 0.1]),
    how=st.sampled_from(["touched", "listed", "whole"]),
    frames=st.integers(2, 9),
    seed=st.integers(0, 1000),
)
def test_frames_hold_the_rows_of_the_moment_however_late_they_are_copied(
    rows: int, dim: int, bits: int | None, share: float, odd_share: float, how: str, frames: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, momentum = (torch.randn(2 * rows, dim, generator=generator) for _ in range(2))
    weight[torch.rand(2 * rows, generator=generator) < odd_share, 0] = torch.inf
    spec = table_spec(2 * rows, dim)
    codecs = {} if bits is None else dict(table_codecs(spec, bits))
    start, stop = rows // 2, rows // 2 + rows
    wanted_ids = (torch.rand(rows, generator=generator) < share).nonzero().view(-1) + start
    if how == "whole":
        wanted_ids = torch.arange(start, stop)
    copy = TableCopy(
        index=0,
        columns=spec.columns,
        tensors=(weight, momentum),
        start=start,
        stop=stop,
        ids=wanted_ids if how == "listed" else None,
        unlisted=touched(2 * rows, wanted_ids, start, stop) if how == "touched" else None,
        codecs=codecs,
    )
    dense = [torch.randn(size, generator=generator) for size in (1, 77, 20_000)]
    agent, streams = Agent(spec, codecs, frames), DelayedStreams()
    staging = Staging(streams, {DEVICE: 2**23}, frame_bytes=FRAME_BYTES)
    staged = staging.stage(captured(copy, *dense))
    assert staged is not None and not streams.waits
    shadow = {"weight": weight.clone(), "momentum_buffer": momentum.clone()}
    before = [tensor.clone() for tensor in dense]
    for tensor in (weight, momentum, *dense):
        tensor.fill_(7.0)  # training goes on
    draining = Draining(staged, staging, agent, agent.buffer)
    try:
        drain_in_steps(draining, agent)
    except SaveFailed:
        assert odd_share and bits  # more escapes than there is room for: taken again, and told so
        return

    ids, found = agent.rows()
    assert torch.equal(ids, wanted_ids)
    for name in found:
        values = shadow[name][wanted_ids]
        wanted = values
        if codecs:
            codec = codecs[name]
            wanted = torch.from_numpy(codec.decode(codec.encode(values.numpy()), dim))
        assert torch.equal(found[name].view(torch.int32), wanted.view(torch.int32))
    for number, tensor in enumerate(before):
        assert agent.state[number] == tensor.numpy().tobytes()


def staged_once(frames: int = 8, size: int = 2**24) -> tuple[Tensor, Staging, DelayedStreams, Agent, TableCopy]:
    spec = table_spec(3000, 16)
    weight = torch.randn(3000, 16)
    copy = TableCopy(
        index=0, columns=spec.columns, tensors=(weight, weight.clone()), start=0, stop=3000, ids=None, codecs={}
    )
    streams = DelayedStreams(most_at_once=0)
    return weight, Staging(streams, {DEVICE: size}, frame_bytes=FRAME_BYTES), streams, Agent(spec, {}, frames), copy


def test_a_buffer_that_is_reused_before_its_copies_were_made_is_noticed() -> None:
    weight, staging, _, agent, copy = staged_once()
    staged = staging.stage(captured(copy))
    assert staged is not None
    staged.part.await_tally()
    draining = Draining(staged, staging, agent, agent.buffer)
    assert not draining.advance()
    weight.add_(1.0)
    staging.stage(captured(copy))
    with pytest.raises(OutOfOrder, match="before its copy"):
        draining.advance(wait=True)


def test_a_side_stream_that_does_not_follow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, staging, _, agent, copy = staged_once()
    staged = staging.stage(captured(copy))
    assert staged is not None
    Draining(staged, staging, agent, agent.buffer).advance(wait=True)
    weight.add_(1.0)
    monkeypatch.setattr(DelayedStreams, "follow", lambda self, device: None)
    staged = staging.stage(captured(copy))
    assert staged is not None
    with pytest.raises(OutOfOrder, match="not told to wait"):
        Draining(staged, staging, agent, agent.buffer).advance(wait=True)


def test_a_snapshot_that_does_not_fit_the_device_buffer_is_left_to_the_old_way_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, staging, streams, _, copy = staged_once(size=100_000)
    assert staging.stage(captured(copy)) is None
    assert staging.stage(captured(copy)) is None
    (told,) = [record.message for record in caplog.records]
    assert "device_buffer_bytes=384000" in told
    assert not streams.queued


def test_a_snapshot_with_too_many_rows_that_no_record_holds_is_thrown_away_and_the_next_has_room() -> None:
    spec = table_spec(4000, 16)
    codecs = dict(table_codecs(spec, 2))
    weight = torch.full((4000, 16), torch.nan)
    copy = TableCopy(
        index=0, columns=spec.columns, tensors=(weight, weight), start=0, stop=4000, ids=None, codecs=codecs
    )
    agent, streams = Agent(spec, codecs, 4), DelayedStreams()
    staging = Staging(streams, {DEVICE: 2**24}, frame_bytes=FRAME_BYTES)
    staged = staging.stage(captured(copy))
    assert staged is not None
    draining = Draining(staged, staging, agent, agent.buffer)
    with pytest.raises(SaveFailed, match="4000 rows cannot be encoded"):
        draining.advance(wait=True)
    draining.abandon()
    assert agent.free_frames == 4
    again = staging.stage(captured(copy))
    assert again is not None
    Draining(again, staging, agent, agent.buffer).advance(wait=True)
    agent.finish()
    ids, found = agent.rows()
    assert torch.equal(ids, torch.arange(4000)) and found["weight"].isnan().all()


def test_more_rows_than_their_bound_are_thrown_away_and_counted_from_then_on() -> None:
    spec, ids = table_spec(3000, 16), torch.arange(0, 3000, 2)
    rows = touched(3000, ids, 0, 3000)
    wrong = replace(rows, touched=replace(rows.touched, most=100))
    weight = torch.randn(3000, 16)
    copy = TableCopy(
        index=0, columns=spec.columns, tensors=(weight, weight), start=0, stop=3000, ids=None, unlisted=wrong
    )
    agent = Agent(spec, {}, 4)
    staging = Staging(DelayedStreams(), {DEVICE: 2**22}, frame_bytes=FRAME_BYTES)
    staged = staging.stage(captured(copy))
    assert staged is not None
    with pytest.raises(SaveFailed, match="1500 rows were touched, and no more than 100 were expected"):
        Draining(staged, staging, agent, agent.buffer).advance(wait=True)
    assert staging.stage(captured(copy)) is None


def test_an_abandoned_snapshot_gives_its_frames_back_once_nothing_is_copied_to_them() -> None:
    _, staging, streams, agent, copy = staged_once()
    staged = staging.stage(captured(copy))
    assert staged is not None
    staged.part.await_tally()
    draining = Draining(staged, staging, agent, agent.buffer)
    assert not draining.advance() and agent.free_frames < 8
    draining.abandon()
    assert agent.free_frames == 8 and streams.made == streams.queued
