"""Real processes, really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast as hf
from tests.session.forks import FORKS
from tests.session.trainer import run_fork
from tests.tiny import build, same, snapshot, uninterrupted

ROOT = Path(__file__).parents[2]


class Trainer:
    """A trainer process whose lines can be waited for."""

    def __init__(self, url: str, *arguments: str) -> None:
        lines, told = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=run_fork, args=(told, [url, *arguments]))
        self._process.start()
        told.close()
        self._lines = os.fdopen(os.dup(lines.fileno()), encoding="utf-8")
        lines.close()
        self.agent = 0

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def until(self, wanted: Callable[[str, int], bool]) -> tuple[str, int]:
        """Read lines until one is wanted."""
        for line in self._lines:
            word, _, number = line.partition(" ")
            if word == "agent":
                self.agent = int(number)
            if wanted(word, int(number)):
                return word, int(number)
        raise AssertionError(f"the trainer ended with {self.wait()} before it printed what was waited for")

    def wait(self) -> int:
        """Its exit code."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """Leave nothing of it."""
        self.kill()
        self._lines.close()

    def finish(self) -> bool:
        """Let it run to its end; whether it ended where an uninterrupted run does."""
        _, exact = self.until(lambda word, _: word == "exact")
        return self.wait() == 0 and exact == 1


@contextmanager
def trainer(url: str, *arguments: str) -> Iterator[Trainer]:
    started = Trainer(url, *arguments)
    try:
        yield started
    finally:
        started.close()


def wait_until_gone(pid: int, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")


def test_trainer_killed_after_snapshot_still_gets_its_checkpoint(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--every", "10") as first:
        _, step = first.until(lambda word, number: word == "snapshot" and number >= 20)
        first.kill()
        wait_until_gone(first.agent)
    assert hf.open_run(url).checkpoints()[-1].step == step
    with trainer(url) as second:
        assert second.until(lambda word, _: word == "resumed") == ("resumed", step)
        assert second.finish()


def test_killed_whole_process_group_still_gets_its_checkpoint(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url) as first:
        _, step = first.until(lambda word, _: word == "snapshot")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        wait_until_gone(first.agent)
    assert hf.open_run(url).checkpoints()[-1].step == step


def test_trainer_goes_on_when_its_agent_is_killed_and_the_next_checkpoint_holds_everything(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--pause-s", "0.02") as process:
        process.until(lambda word, number: word == "step" and number == 12)
        os.kill(process.agent, signal.SIGKILL)
        assert process.finish()
    model, optimizers = build()
    assert hf.open_run(url).restore(model=model, optimizer=optimizers).step == 40
    assert same(snapshot(model, optimizers), uninterrupted(40))
    assert hf.open_run(url).verify() == []


def test_agent_killed_in_the_middle_of_a_save_loses_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--pause-s", "0.02") as process:
        process.until(lambda word, number: word == "snapshot" and number == 20)
        os.kill(process.agent, signal.SIGKILL)
        assert process.finish()
    assert hf.open_run(url).verify() == []


def test_trainer_killed_between_saves_of_rows_continues_from_the_checkpoint(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--partial", "--pause-s", "0.02") as first:
        first.until(lambda word, number: word == "rows" and number > 10)
        first.kill()
        wait_until_gone(first.agent)
    newest = hf.open_run(url).checkpoints()[-1].step
    assert newest % 10 == 0
    with trainer(url, "--partial") as second:
        assert second.until(lambda word, _: word == "resumed") == ("resumed", newest)
        assert second.finish()
    assert hf.open_run(url).verify() == []


def test_agent_killed_while_rows_are_saved_loses_no_checkpoint(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--partial", "--pause-s", "0.02") as process:
        process.until(lambda word, number: word == "step" and number == 14)  # a save of rows has just begun
        os.kill(process.agent, signal.SIGKILL)
        assert process.finish()
    model, optimizers = build()
    assert hf.open_run(url).restore(model=model, optimizer=optimizers).step == 40
    assert same(snapshot(model, optimizers), uninterrupted(40))
    assert hf.open_run(url).verify() == []


def test_ctrl_c_does_not_reach_the_agent(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--hold-at", "20") as process:
        process.until(lambda word, _: word == "holding")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() != 0
        wait_until_gone(process.agent)
    assert hf.open_run(url).checkpoints()[-1].step == 20


def test_sigterm_saves_at_the_next_step_and_exits_distinctly(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--every", "1000", "--steps", "100000", "--pause-s", "0.01") as process:
        _, step = process.until(lambda word, number: word == "step" and number >= 5)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == hf.Terminated.EXIT_CODE
    newest = hf.open_run(url).checkpoints()[-1]
    assert newest.step > step
    model, optimizers = build()
    hf.open_run(url).restore(model=model, optimizer=optimizers)
    assert same(snapshot(model, optimizers), uninterrupted(newest.step))


def test_trainer_that_is_read_through_a_pipe_ends_its_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.session.trainer", str(tmp_path / "run"), "--steps", "10"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert output.returncode == 0, output.stderr


@pytest.mark.parametrize("after", [3, 14])
def test_killed_at_any_step_continues_where_it_was(tmp_path: Path, after: int) -> None:
    url = str(tmp_path / "run")
    with trainer(url, "--pause-s", "0.01") as first:
        first.until(lambda word, number: word == "step" and number == after)
    with trainer(url) as second:
        _, step = second.until(lambda word, _: word == "resumed")
        assert step in (after // 10 * 10, 0)
        assert second.finish()
