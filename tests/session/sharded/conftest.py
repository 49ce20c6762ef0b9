"""One job of each size for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.jobs.job import Jobs
from tests.session.sharded.rank import ShardedRank


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    kept = Jobs(ShardedRank)
    yield kept
    kept.stop()
