"""Endpoints of one job that are closed in the end, on each kind of address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.wire.meeting import Meeting


@pytest.fixture(params=["loopback", "ipc", "encrypted"])
def meeting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meeting]:
    made = Meeting(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Meeting]:
    made = Meeting("loopback", tmp_path)
    yield made
    made.close()
