"""A spare is ready for any place, also after it has rehearsed one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cluster.placement import Placement
from holdfast.cluster.server.moves import Movers
from holdfast.cluster.server.place import Place
from holdfast.cluster.server.room import Room
from holdfast.cluster.server.spare import _rehearse
from tests.cluster.server.jobs import job


@pytest.fixture
def movers() -> Iterator[Movers]:
    threads = Movers.started(may_read=False)
    yield threads
    threads.close()


@pytest.mark.parametrize("rows", [3, 301, 40_003])
@pytest.mark.parametrize("machines", ["abc", "abcc", "aabbccc"])
def test_whatever_place_it_takes_saves_have_the_memory_that_it_holds_ready(
    tmp_path: Path, machines: str, rows: int, movers: Movers
) -> None:
    found = job(str(tmp_path), machines=tuple(machines), rows=rows, dense=50_000)
    placement = Placement(found.plan, found.servers)
    for index in range(found.servers):
        room = Room.for_any(placement, found.optimizer, found.dense_optimizer, found.saving.settings, found.rings)
        assert room is not None
        _rehearse(found, room, movers)
        place = Place(found, index, room, movers)
        buffer = place.saves._writer._buffer
        assert buffer is room.buffer
        buffer.frame(buffer.frames - 1)[-1] = 1  # it is open
        buffer.close()
