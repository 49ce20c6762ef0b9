"""What a server has in its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.seats import rows_bytes, server_bytes
from holdfast.cluster.placement import Placement
from holdfast.cluster.server import place as places
from holdfast.cluster.server.dense_gather import DenseGather
from holdfast.cluster.server.place import Place
from holdfast.errors import ConfigurationError
from tests.cluster.server.jobs import job


def test_rows_count_whose_memory_is_not_taken_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = job(str(tmp_path))
    placement, rule = Placement(found.plan, found.servers), found.optimizer.rule()
    parities = server_bytes(RingLayout(placement, found.rings[0]), 1, rule, found.dense_optimizer.rule())
    rows = rows_bytes(placement, rule, found.dense_optimizer.rule())[1]
    monkeypatch.setattr(places, "available_bytes", lambda: rows + parities)
    Place(found, 1, None, None)
    monkeypatch.setattr(places, "available_bytes", lambda: rows + parities - 1)
    with pytest.raises(ConfigurationError, match="server 1"):
        Place(found, 1, None, None)


def test_a_late_part_of_a_save_that_was_called_off_does_not_undo_the_next_one(tmp_path: Path) -> None:
    gather = Place(job(str(tmp_path)), 0, None, None).dense
    assert isinstance(gather, DenseGather)
    part = (np.zeros(2, np.float32),)
    gather.take(6, 2, part)
    gather.take(5, 1, part)
    assert not gather.is_whole(6)
    gather.take(6, 1, part)
    assert gather.is_whole(6)
