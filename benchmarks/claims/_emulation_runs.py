"""Trains every case in several processes and keeps what each came to, a JSON line each; what is there is not repeated.

``python -m benchmarks.claims._emulation_runs LINES --processes 16`` does just that, with PyTorch and NumPy alone, on
another machine; ``python -m benchmarks emulation --json FILE`` then finds the lines next to its file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.claims._emulation_cases import Case, cases
from benchmarks.claims._emulation_trainer import Model, Trained, train

TOGETHER = 7  # trainings of a seed, one after the other in a process: they share its samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to train, and how long at most."""

    model: Model
    seeds: int
    draws: int  # of failures and intervals, per seed
    budget_s: float  # nothing is begun after it
    schedules: int = 1000  # of failures, for the overheads


PLANS = {
    "tiny": Plan(
        model=Model(scale=0.0002, steps=280, batch_size=16, test_samples=1000),
        seeds=2,
        draws=1,
        budget_s=60,
        schedules=300,
    ),
    "small": Plan(
        model=Model(scale=0.001, steps=600, batch_size=128, test_samples=20_000), seeds=2, draws=2, budget_s=240
    ),
    "full": Plan(
        model=Model(scale=0.005, steps=2000, batch_size=256, test_samples=40_000), seeds=24, draws=3, budget_s=55 * 60
    ),
}


class Lines:
    """A file of what was trained, by one plan's model."""

    def __init__(self, path: Path, model: Model) -> None:
        self._path = path
        self._model = asdict(model)

    def add(self, trained: Trained) -> None:
        """Keep it; lines of several processes do not mix."""
        line = json.dumps({**asdict(trained), "model": self._model}) + "\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def read(self) -> list[Trained]:
        """What is there; a line that was cut off does not count."""
        return list(self._parsed()) if self._path.exists() else []

    def _parsed(self) -> Iterator[Trained]:
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                body = json.loads(line)
            except ValueError:
                continue
            if body.pop("model", None) == self._model:
                yield Trained(**body)


def train_all(plan: Plan, lines: Lines, processes: int, on_trained: Callable[[int], None] = lambda count: None) -> None:
    """Every case that is not trained yet, seed by seed, until they are all done or time is up."""
    ends_at = time.monotonic() + plan.budget_s
    if processes == 1:
        for chunk in list(_chunks(plan, lines)):
            on_trained(_train_chunk(chunk, plan.model, lines, ends_at))
        return
    context = multiprocessing.get_context("spawn")  # a fork would share what torch's threads hold
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        # The moment is of a clock that all processes of a machine share.
        running = [pool.submit(_train_chunk, chunk, plan.model, lines, ends_at) for chunk in _chunks(plan, lines)]
        for done in as_completed(running):
            on_trained(done.result())


def missing(plan: Plan, lines: Lines) -> list[Case]:
    """What is not trained yet."""
    done = {(each.seed, each.key) for each in lines.read()}
    every = [case for seed in range(plan.seeds) for case in cases(seed, plan.draws)]
    return [case for case in every if (case.seed, case.key) not in done]


def _chunks(plan: Plan, lines: Lines) -> Iterator[list[Case]]:
    left = missing(plan, lines)
    for seed in range(plan.seeds):
        of_seed = [case for case in left if case.seed == seed]
        for start in range(0, len(of_seed), TOGETHER):
            yield of_seed[start : start + TOGETHER]


def _train_chunk(chunk: Sequence[Case], model: Model, lines: Lines, ends_at: float) -> int:
    done = 0
    for case in chunk:
        if time.monotonic() < ends_at:
            lines.add(train(case, model))
            done += 1
    return done


def main() -> int:
    """Train what is missing; 1 if time was up before all was done."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--scale", choices=PLANS, default="full")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--budget-s", type=float)
    options = parser.parse_args()
    plan = PLANS[options.scale]
    if options.budget_s is not None:
        plan = replace(plan, budget_s=options.budget_s)
    lines = Lines(options.lines, plan.model)
    train_all(plan, lines, options.processes)
    left = len(missing(plan, lines))
    print(f"{len(lines.read())} trainings are kept, {left} are left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
