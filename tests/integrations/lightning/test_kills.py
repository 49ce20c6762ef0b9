"""Lightning programs as real processes, really killed in the middle of an epoch: as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import Terminated
from tests.integrations.lightning.nursery import Nursery, nursery

pytestmark = pytest.mark.timeout(400)
TWO = (19, 38)
TEN = (3, 6, 11, 14, 19, 25, 31, 34, 38, 43)  # of 45 batches in 3 epochs; saves are due after every fourth


@pytest.fixture(scope="module")
def programs() -> Iterator[Nursery]:
    with nursery() as opened:
        yield opened


def saved_steps(url: Path) -> list[int]:
    return [info.step for info in hf.open_run(str(url)).checkpoints()]


@pytest.mark.parametrize("batches", [TWO, pytest.param(TEN, marks=pytest.mark.slow)], ids=["twice", "ten times"])
def test_kills_in_mid_epoch_leave_the_model_of_an_undisturbed_run(
    programs: Nursery, tmp_path: Path, batches: tuple[int, ...]
) -> None:
    expected = programs.start(tmp_path / "undisturbed").result()
    for batch in batches:
        program = programs.start(tmp_path / "killed")
        program.until(batch)
        program.kill()
    assert programs.start(tmp_path / "killed").result() == expected
    assert hf.open_run(str(tmp_path / "killed")).verify() == []


@pytest.mark.slow
def test_ranks_that_are_killed_leave_the_model_of_an_undisturbed_run(programs: Nursery, tmp_path: Path) -> None:
    expected = programs.start(tmp_path / "undisturbed", ranks=2, save=2).result()
    for batch in (3, 10, 17):  # of 24
        program = programs.start(tmp_path / "killed", ranks=2, save=2)
        program.until(batch)
        program.kill()
    assert programs.start(tmp_path / "killed", ranks=2, save=2).result() == expected


def test_sigterm_saves_at_the_next_batch_and_says_so(programs: Nursery, tmp_path: Path) -> None:
    expected = programs.start(tmp_path / "undisturbed", save=1000).result()
    program = programs.start(tmp_path / "ended", save=1000)
    program.until(20)
    os.kill(program.pids[0], signal.SIGTERM)
    assert program.ended() == [Terminated.EXIT_CODE]
    assert saved_steps(tmp_path / "ended")[-1] >= 20
    assert programs.start(tmp_path / "ended", save=1000).result() == expected


@pytest.mark.slow
def test_sigterm_to_one_rank_ends_all_at_one_step(programs: Nursery, tmp_path: Path) -> None:
    expected = programs.start(tmp_path / "undisturbed", ranks=2, save=1000).result()
    program = programs.start(tmp_path / "ended", ranks=2, save=1000)
    program.until(5)
    os.kill(program.pids[1], signal.SIGTERM)
    assert program.ended() == [Terminated.EXIT_CODE] * 2
    assert saved_steps(tmp_path / "ended") == [16]  # where ranks compare signals
    assert programs.start(tmp_path / "ended", ranks=2, save=1000).result() == expected
