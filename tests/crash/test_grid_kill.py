"""Real processes are killed while they rearrange."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

import holdfast as hf
from holdfast.run import Run
from holdfast.storage import LocalStore
from holdfast.testing.server import S3Place
from tests.crash.test_s3_kills import check_run, train_and_kill, victim
from tests.grid import Trainer, Truth, bundles_named, bundles_stored
from tests.session.job import freeze, kill

GRID = hf.Grid(rule=hf.DeadShare(0.05), reset=False)


def unfinished_round(run: Run, folder: Path, wrote: str) -> str | None:
    """A round that has written such an object and is not committed."""
    rounds = {each for entry in run.head().entries for each in entry.rounds}
    for each in (folder / "data").iterdir():
        if each.name not in rounds and any(file.name.startswith(wrote) for file in each.iterdir()):
            return each.name
    return None


def catch_in_a_round(trainer: Trainer, run: Run, folder: Path, wrote: str) -> str:
    """Make six checkpoints due, and freeze their agent while it rearranges them; what the round is called."""
    for attempt in range(30):
        trainer.save({"wide": [8 * number + attempt % 8 for number in range(6)]})
        deadline_s = time.monotonic() + 0.5
        while time.monotonic() < deadline_s:
            if unfinished_round(run, folder, wrote) is None:
                continue
            freeze(trainer.guard.agent_pid)
            if (caught := unfinished_round(run, folder, wrote)) is not None:
                return caught
            os.kill(trainer.guard.agent_pid, signal.SIGCONT)
    raise AssertionError("every round was committed before it was noticed")


@pytest.mark.parametrize("wrote", ["rows-", "checkpoint-"])  # when it begins, and just before it commits
def test_an_agent_killed_in_a_round_loses_nothing_and_the_next_one_rearranges(wrote: str, tmp_path: Path) -> None:
    store, truth = LocalStore(tmp_path), Truth()
    run = Run(store)
    with Trainer(str(tmp_path), GRID, truth) as trainer:
        trainer.save({"wide": [0], "short": [0], "flat": [0]})
        for number in range(6):
            trainer.save({"wide": range(8 * number, 8 * number + 8)})
        caught = catch_in_a_round(trainer, run, tmp_path, wrote)
        try:
            truth.check(run)
            assert run.verify() == []
        finally:
            kill(trainer.guard.agent_pid)
        while not trainer.guard.stats.agent_deaths:
            trainer.move({"wide": [50]})
        before = [entry.rounds for entry in run.head().entries]
        trainer.save({"wide": [51]}, arranged=True)
        assert trainer.guard.stats.grid.rounds > 0
        assert [entry.rounds for entry in run.head().entries[:7]] != before[:7]
        truth.check(run)
    with Trainer(str(tmp_path), GRID, truth) as trainer:
        trainer.save({"wide": [52]}, arranged=True)
    run.prune(hf.KeepAll(), grace_s=0.0)
    truth.check(run)
    assert run.verify() == []
    assert list(store.list(f"data/{caught}/")) == []
    assert bundles_named(store) == bundles_stored(store)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_grid_on_s3_killed_very_often_ends_where_an_uninterrupted_run_ends(s3_place: S3Place, seed: int) -> None:
    with victim(s3_place, "grid", steps=300) as trainers:
        train_and_kill(trainers, kills=15, chance=Random(seed))
        check_run(s3_place, 300, trainers.committed)
    run = hf.open_run(s3_place.url, options=s3_place.options)
    assert any(entry.rounds for entry in run.head().entries)
