"""The controller dies, or is told to end: all is saved, all ends, and the next start goes on from there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast as hf
from tests.cluster.processes.script import ScriptJob
from tests.cluster.processes.twin import Recipe, Twin, assert_same, saved_at_end
from tests.cluster.processes.watched import WAIT_S

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
    start_script: Callable[..., ScriptJob], tmp_path: Path
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

    twin = Twin(Recipe(servers=2))
    twin.run_to(after_term)
    assert_same(saved_at_end(tmp_path / "run", twin.recipe), twin.values())
    assert hf.open_run(tmp_path / "run").verify() == []


@pytest.mark.slow
def test_ctrl_c_saves_and_ends(start_script: Callable[..., ScriptJob], tmp_path: Path) -> None:
    job = start_script(
        limit=LAST, step_s=0.01, options="workers=2, servers=3, spares=1, synchronous=True, ladder=hf.Ladder()"
    )
    job.until_at(10)
    assert job.end(signal.SIGINT) == -signal.SIGINT
    job.assert_nothing_is_left()
    assert newest_step(tmp_path) >= 10


@pytest.mark.slow
def test_a_train_that_raises_ends_everything_with_an_exit_code(start_script: Callable[..., ScriptJob]) -> None:
    job = start_script(limit=3, options="train=bad_programs.train_badly, workers=2")
    job.until_at(3)
    job.gate.open(LAST)
    assert job.controller.wait(WAIT_S) == 1
    assert "NotFinite: the gradient of" in job.log.read_text()
    job.assert_nothing_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [hf.Full, hf.Partial])
def test_a_controller_that_was_stopped_for_too_long_goes_on_where_the_others_saved(
    strategy: type, start_script: Callable[..., ScriptJob], tmp_path: Path
) -> None:
    options = f"silence_s=4.0, save=hf.EverySteps(20), strategy=hf.{strategy.__name__}()"
    job = start_script(limit=LAST, step_s=0.01, options=options)
    job.until_at(25)
    job.controller.send_signal(signal.SIGSTOP)
    job.until_gone()
    saved = newest_step(tmp_path)
    assert saved >= 25
    job.controller.send_signal(signal.SIGCONT)
    job.until_at(saved + 25)
    assert job.end(signal.SIGTERM) == hf.Terminated.EXIT_CODE
    job.assert_nothing_is_left()
    last = newest_step(tmp_path)
    twin = Twin(Recipe(servers=2))
    twin.run_to(last)
    assert_same(saved_at_end(tmp_path / "run", twin.recipe), twin.values())
    assert "saved and ended" in job.log.read_text()
