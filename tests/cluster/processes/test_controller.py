"""The controller dies, or is told to end: all is saved, all ends, and the next start goes on from there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast as hf
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.script import ScriptJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, saved_at_end

LAST = 100_000


@pytest.fixture
def start_script(tmp_path: Path) -> Iterator[Callable[..., ScriptJob]]:
    jobs: list[ScriptJob] = []

    def start(**options: object) -> ScriptJob:
        jobs.append(ScriptJob(tmp_path / "run", tmp_path / "gate", **options))  # type: ignore[arg-type]
        return jobs[-1]

    yield start
    for job in jobs:
        job.abandon()


def newest_step(path: Path) -> int:
    return hf.open_run(path / "run").checkpoints()[-1].step


def test_a_killed_controller_and_a_terminated_one_cost_no_step(
    start_script: Callable[..., ScriptJob], start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    job = start_script(limit=LAST, step_s=0.01)
    job.until_at(10)
    assert job.end(signal.SIGKILL) == -signal.SIGKILL
    job.assert_nothing_is_left()
    after_kill = newest_step(tmp_path)
    assert after_kill >= 10

    job = start_script(limit=LAST, step_s=0.01)
    job.until_at(after_kill + 5)
    assert job.end(signal.SIGTERM) == 128 + signal.SIGTERM
    job.assert_nothing_is_left()
    after_term = newest_step(tmp_path)
    assert after_term >= after_kill + 5

    finishing = start_job(servers=2)
    finishing.finish(after_term + 3)
    recipe = Recipe(servers=2)
    twin = Twin(recipe)
    twin.run_to(after_term + 3)
    assert_same(saved_at_end(finishing.url, recipe), twin.values())
    assert hf.open_run(finishing.url).verify() == []


@pytest.mark.slow
def test_ctrl_c_saves_and_ends(start_script: Callable[..., ScriptJob], tmp_path: Path) -> None:
    job = start_script(limit=LAST, step_s=0.01, options="workers=2, servers=3, spares=1, synchronous=True")
    job.until_at(10)
    assert job.end(signal.SIGINT) == -signal.SIGINT
    job.assert_nothing_is_left()
    assert newest_step(tmp_path) >= 10
