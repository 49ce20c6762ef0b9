"""What a spare holds ready fits every server of its job, and is what new memory would be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.shards import ShardedRun, ShardWriter
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import ModelPlan, TableSpec
from holdfast.cluster.server import room as rooms
from holdfast.cluster.server.room import Room
from holdfast.cluster.server.shards import shards_of
from holdfast.cluster.shard import Shard
from holdfast.erasure.ring import Ring
from holdfast.policy import Adagrad, Adam, Uniform
from tests.cluster.parity.models import placements

SETTINGS = Settings(frame_bytes=16 * 4096, reserve_bytes=0)
TABLES, DENSE = Adagrad(lr=0.1, initial_accumulator_value=0.25), Adam(lr=0.1)


def room_for(placement: Placement) -> Room:
    room = Room.for_any(placement, TABLES, DENSE, SETTINGS)
    assert room is not None
    return room


@given(placements(), st.data())
@settings(max_examples=30)
def test_any_server_can_begin_in_it(found: tuple[Placement, Ring], data: st.DataObject) -> None:
    placement, _ = found
    server = data.draw(st.integers(0, placement.servers - 1))
    ready = Shard(placement, server, TABLES, DENSE, room_for(placement).arrays)
    new = Shard(placement, server, TABLES, DENSE)
    for mine, fresh in zip(ready.groups, new.groups, strict=True):
        assert mine.weights.shape == fresh.weights.shape
        np.testing.assert_array_equal(mine.slots["sum"], fresh.slots["sum"])
    dense = np.arange(placement.plan.dense_size, dtype=np.float32)
    ready.start(dense)
    new.start(dense)
    for mine, fresh in zip(ready.groups, new.groups, strict=True):
        np.testing.assert_array_equal(mine.weights, fresh.weights)


@given(placements(), st.data())
@settings(max_examples=20)
def test_its_buffer_serves_the_saves_of_any_server(
    tmp_path_factory: pytest.TempPathFactory, found: tuple[Placement, Ring], data: st.DataObject
) -> None:
    placement, _ = found
    room = room_for(placement)
    rows = Shard(placement, data.draw(st.integers(0, placement.servers - 1)), TABLES, DENSE, room.arrays)
    run = ShardedRun(str(tmp_path_factory.mktemp("run")))
    writer = ShardWriter(run, list(shards_of(rows)), part=0, parts=1, settings=SETTINGS, reserved=room.buffer)
    assert writer._buffer is room.buffer
    room.buffer.close()


@given(placements())
@settings(max_examples=30)
def test_parities_of_any_server_fit_into_it(found: tuple[Placement, Ring]) -> None:
    placement, ring = found
    room = Room.for_any(placement, TABLES, DENSE, SETTINGS, [ring])
    assert room is not None and room.parities is not None
    layout = RingLayout(placement, ring)
    for server in ring.servers:
        rows = Shard(placement, server, TABLES, DENSE)
        ready, new = ShardParity(layout, rows, room.parities), ShardParity(layout, rows)
        for mine, fresh in zip(ready.parities.arrays, new.parities.arrays, strict=True):
            np.testing.assert_array_equal(mine, fresh)
    assert room_for(placement).parities is None


def test_a_spare_takes_no_memory_where_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "available_bytes", lambda: 1000)
    table = TableSpec(name="t.weight", rows=500, width=4, init=Uniform(-1, 1))
    placement = Placement(ModelPlan(tables=(table,), dense=()), 2)
    assert Room.for_any(placement, TABLES, DENSE, SETTINGS) is None


def test_spares_that_get_ready_at_one_time_take_no_more_together_than_one_may(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableSpec(name="t.weight", rows=500_000, width=4, init=Uniform(-1, 1))
    placement = Placement(ModelPlan(tables=(table,), dense=()), 2)
    needed = 2 * 4 * (table.rows // 2) * (table.width * 2)  # weights and a slot, and a snapshot of both
    monkeypatch.setattr(rooms, "available_bytes", lambda: 2 * needed)
    assert Room.for_any(placement, TABLES, DENSE, SETTINGS, spares=1) is not None
    assert Room.for_any(placement, TABLES, DENSE, SETTINGS, spares=2) is None
