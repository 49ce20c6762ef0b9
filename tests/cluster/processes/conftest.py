"""Jobs that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes.gate import Gate
from tests.cluster.processes.jobs import RunningJob


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A busy machine takes its time to start processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def start_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RunningJob]]:
    """Starts a job on a run in ``tmp_path``: of local processes, unless ``kind`` says otherwise."""
    folder = tmp_path / "gate"
    for name, value in Gate.environment(folder).items():
        monkeypatch.setenv(name, value)
    jobs: list[RunningJob] = []

    def start(run: str = "run", kind: type[RunningJob] = RunningJob, **options: Any) -> RunningJob:
        jobs.append(kind(tmp_path / run, folder, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.abandon()
