"""Trains seed by seed with every setting, in several processes, and keeps what each came to in a file of JSON lines.

What the file holds already is not trained again, so that a measurement that was interrupted goes on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.claims._accuracy_settings import SETTINGS, Setting
from benchmarks.claims._accuracy_trainer import Job, State, Trainer

PLAIN = "plain"  # the run without failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one training came to."""

    seed: int
    setting: str
    auc: float
    log_loss: float
    points: Sequence[float]  # the AUC on the way


class Results:
    """A file with one result per line, of one job or of several; each line is written at once."""

    def __init__(self, path: Path, job: Job) -> None:
        self._path = path
        self._job: dict[str, Any] = asdict(job)

    def add(self, result: Result) -> None:
        """Keep it, whatever else writes to the file and wherever a line before it was cut off."""
        line = f"\n{json.dumps({**asdict(result), 'job': self._job})}\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def read(self) -> list[Result]:
        """Those of this job; a line that was cut off does not count."""
        return list(self._lines()) if self._path.exists() else []

    def _lines(self) -> Iterator[Result]:
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                body = json.loads(line)
            except ValueError:
                continue
            if body.pop("job") == self._job:
                yield Result(**body)


def train_seeds(
    results: Results, job: Job, *, processes: int, seeds: Sequence[int], is_enough: Callable[[list[Result]], bool]
) -> list[Result]:
    """Train seeds in turn until those that were finished are enough."""
    left = [seed for seed in seeds if missing(results.read(), seed)]
    context = multiprocessing.get_context("spawn")  # a fork would share what torch's threads hold
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        running: set[Future[None]] = set()
        while running or (left and not is_enough(results.read())):
            while left and len(running) < processes and not is_enough(results.read()):
                running.add(pool.submit(train_seed, left.pop(0), job, results))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for each in done:
                each.result()
    return results.read()


def missing(found: Sequence[Result], seed: int) -> list[str]:
    """What was not trained yet with a seed."""
    there = {each.setting for each in found if each.seed == seed}
    return [name for name in (PLAIN, *SETTINGS) if name not in there]


def train_seed(seed: int, job: Job, results: Results) -> None:
    """All trainings with one seed that were not done yet; each begins where it parts from the one without failures."""
    torch.set_num_threads(1)
    todo = missing(results.read(), seed)
    settings = {name: SETTINGS[name] for name in todo if name != PLAIN}
    trainer = Trainer(seed, job)
    states = _train_plain(trainer, seed, {_parting(each, job) for each in settings.values()}, results)
    for name, setting in settings.items():
        trainer.load(states[_parting(setting, job)])
        _train_restored(trainer, seed, name, results)


def _parting(setting: Setting, job: Job) -> int:
    """The first step that knows of the setting: that of the baseline before its first restore."""
    return setting.steps(job.steps)[0] // job.baseline_steps * job.baseline_steps


def _train_plain(trainer: Trainer, seed: int, partings: set[int], results: Results) -> dict[int, State]:
    """Train without failures, to the end unless that is known; the states at these steps."""
    states: dict[int, State] = {}
    is_known = PLAIN not in missing(results.read(), seed)

    def before(step: int) -> None:
        if step in partings:
            states[step] = trainer.state()

    if is_known:
        for step in range(max(partings) + 1):
            before(step)
            trainer.step(step)
    else:
        _add(results, trainer, seed, PLAIN, _train(trainer, 0, before))
    return states


def _train_restored(trainer: Trainer, seed: int, name: str, results: Results) -> None:
    """Train on from where the setting parts, restoring when it is time."""
    setting, job = SETTINGS[name], trainer.job
    restores, perturbation = set(setting.steps(job.steps)), setting.perturbation
    start = _parting(setting, job)

    def before(step: int) -> None:
        if step in restores:
            perturbation.restore(trainer.rows)
        if step % job.baseline_steps == 0:
            perturbation.take_baseline(trainer.rows)
        perturbation.touch(trainer.ids(step))

    plain = next(each for each in results.read() if each.seed == seed and each.setting == PLAIN)
    common = [auc for mark, auc in zip(job.marks, plain.points, strict=True) if mark <= start]
    _add(results, trainer, seed, name, [*common, *_train(trainer, start, before)])


def _train(trainer: Trainer, start: int, before: Callable[[int], None]) -> list[float]:
    """Train to the end; the AUC at the points on the way."""
    marks, points = set(trainer.job.marks), []
    for step in range(start, trainer.job.steps):
        before(step)
        trainer.step(step)
        if step + 1 in marks:
            points.append(trainer.score(trainer.job.point_samples).auc)
    return points


def _add(results: Results, trainer: Trainer, seed: int, name: str, points: Sequence[float]) -> None:
    score = trainer.score(trainer.job.test_samples)
    results.add(Result(seed=seed, setting=name, auc=score.auc, log_loss=score.log_loss, points=points))
