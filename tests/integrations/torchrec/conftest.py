"""These tests need TorchRec, which has an environment of its own: ``make test-torchrec`` builds it and runs them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.jobs.job import Jobs

collect_ignore_glob = [] if importlib.util.find_spec("torchrec") else ["test_*.py"]


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    from tests.integrations.torchrec.rank import TorchRecRank  # not before it is known that TorchRec is there
    from tests.jobs.job import Jobs

    kept = Jobs(TorchRecRank)
    yield kept
    kept.stop()
