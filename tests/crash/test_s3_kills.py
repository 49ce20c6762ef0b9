"""A real trainer on a real S3 server, killed at random moments: the trainer, its agent, or both at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from random import Random
from threading import Thread
from time import monotonic

import pytest

import holdfast as hf
from holdfast.testing.server import S3Place, S3Server
from tests.tiny import build, same, snapshot, train_step

ROOT = Path(__file__).parents[2]
PATIENCE_S = 100.0
VICTIMS = ("trainer", "agent", "both")


class Victim:
    """Trainers, one after another, that can be watched and killed."""

    def __init__(self, place: S3Place, strategy: str, steps: int) -> None:
        arguments = [place.url, json.dumps(place.options), strategy, str(steps)]
        command = [sys.executable, "-m", "tests.crash.s3_trainer", *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pids = {"trainer": 0, "agent": 0}
        self.exit_code: int | None = None
        self.exact = False
        self.committed: set[int] = set()  # steps that a trainer was told are committed
        self._lines: Queue[str | None] = Queue()
        Thread(target=self._listen, daemon=True).start()

    @property
    def lives(self) -> bool:
        return self.exit_code is None

    def start(self) -> None:
        assert self.process.stdin is not None
        self.exit_code = None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def watch(self, *, until: str, timeout_s: float | None = None) -> None:
        """Take in what it says, until it says that word or ends; for so long, or for ever within reason."""
        deadline_s = monotonic() + (PATIENCE_S if timeout_s is None else timeout_s)
        while self.lives and (left_s := deadline_s - monotonic()) > 0:
            with suppress(Empty):
                line = self._lines.get(timeout=left_s)
                assert line is not None, "the trainers' host ended"
                word, _, number = line.partition(" ")
                self._note(word, int(number))
                if word == until:
                    return
        assert timeout_s is not None or not self.lives, f"the trainer is not {until} after {PATIENCE_S} s"

    def kill(self, whom: str) -> None:
        for name in ("trainer", "agent") if whom == "both" else (whom,):
            if self.lives and self.pids[name]:
                with suppress(ProcessLookupError):
                    os.kill(self.pids[name], signal.SIGKILL)

    def stop(self) -> None:
        self.kill("both")
        self.process.kill()
        self.process.wait()

    def _note(self, word: str, number: int) -> None:
        if word in self.pids:
            self.pids[word] = number
        elif word == "ended":
            self.exit_code, self.pids = number, dict.fromkeys(self.pids, 0)
        elif word == "exact":
            self.exact = number == 1
        elif word == "committed" and number:
            self.committed.add(number)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)


@contextmanager
def victim(place: S3Place, strategy: str, steps: int) -> Iterator[Victim]:
    started = Victim(place, strategy, steps)
    try:
        yield started
    finally:
        started.stop()


def train_and_kill(trainers: Victim, kills: int, chance: Random, disturb: Callable[[], None] = lambda: None) -> None:
    """Kill and resume up to so many times, then let the last trainer finish; a fast machine may get there earlier."""
    planned = kills
    while trainers.exit_code != 0:
        trainers.start()
        trainers.watch(until="resumed")
        while kills and trainers.lives:
            trainers.watch(until="ended", timeout_s=chance.uniform(0.0, 1.2))
            trainers.kill(chance.choice(VICTIMS))
            disturb()
            trainers.watch(until="ended", timeout_s=0.2)
            kills -= 1
        trainers.watch(until="ended")
        assert trainers.exit_code in (0, -signal.SIGKILL)
    assert kills < planned, "the trainer was done before it was killed once"
    assert trainers.exact


def check_run(place: S3Place, steps: int, committed: set[int]) -> None:
    """Every checkpoint is exact, every one that was told to be committed is there, and not a byte is off."""
    run = hf.open_run(place.url, options=place.options)
    assert run.verify() == []
    listed = {info.step for info in run.checkpoints()}
    assert committed | {steps} <= listed
    truth, truth_optimizers = build()
    for step in range(1, steps + 1):
        train_step(truth, truth_optimizers, step - 1)
        if step in listed:
            model, optimizers = build(seed=1)
            run.restore(step, model=model, optimizer=optimizers)
            assert same(snapshot(model, optimizers), snapshot(truth, truth_optimizers)), step


def test_killed_on_s3_at_random_moments_ends_where_an_uninterrupted_run_ends(s3_place: S3Place) -> None:
    with victim(s3_place, "intermittent", steps=100) as trainers:
        train_and_kill(trainers, kills=6, chance=Random(0))
        check_run(s3_place, 100, trainers.committed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", ["consecutive", "intermittent"])
@pytest.mark.parametrize("seed", [1, 2])
def test_killed_on_s3_very_often_ends_where_an_uninterrupted_run_ends(
    s3_place: S3Place, strategy: str, seed: int
) -> None:
    with victim(s3_place, strategy, steps=800) as trainers:
        train_and_kill(trainers, kills=40, chance=Random(seed))
        check_run(s3_place, 800, trainers.committed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_while_the_server_comes_and_goes_ends_where_an_uninterrupted_run_ends(
    s3_server: S3Server, s3_place: S3Place
) -> None:
    with victim(s3_place, "consecutive", steps=400) as trainers:
        train_and_kill(trainers, kills=8, chance=Random(3), disturb=s3_server.restart)
        check_run(s3_place, 400, trainers.committed)
