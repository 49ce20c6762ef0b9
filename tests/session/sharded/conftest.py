"""One job of each size for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.session.sharded.job import Jobs


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    kept = Jobs()
    yield kept
    kept.stop()
