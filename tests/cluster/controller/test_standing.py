"""What members say of themselves, and what all of them together come to."""

from __future__ import annotations

import json

import pytest
import torch

from holdfast.cluster.controller.measured import Measured
from holdfast.cluster.controller.standing import Standing
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.train.metrics import Metrics

WORKERS = [Member(Role.WORKER, index, 1) for index in range(2)]


def report(**found: float | None) -> bytes:
    return json.dumps(found).encode()


def test_speeds_are_those_of_the_last_seconds_and_fall_when_nothing_is_heard() -> None:
    standing = Standing()
    for second in range(5):
        for worker in WORKERS:
            standing.hear(worker, report(steps=second, samples=100 * second), float(second))
    assert standing.samples_per_s(4.0) == pytest.approx(200)
    assert standing.worker_speed(0, 4.0) == pytest.approx(100)
    assert standing.samples_per_s(8.0) < 110
    assert standing.samples_per_s(60.0) == pytest.approx(0, abs=20)
    assert (standing.step(synchronous=False), standing.step(synchronous=True)) == (8, 4)


def test_a_replacement_counts_from_nothing_and_the_total_goes_on() -> None:
    standing = Standing()
    standing.hear(WORKERS[0], report(samples=500), 0.0)
    standing.hear(Member(Role.WORKER, 0, 2), report(samples=20), 1.0)
    standing.hear(Member(Role.WORKER, 0, 2), report(samples=50), 2.0)
    assert standing.samples == 550
    standing.forget(WORKERS[0])  # long gone
    assert standing.samples_per_s(2.0) > 0
    standing.forget(Member(Role.WORKER, 0, 2))
    assert (standing.samples, standing.samples_per_s(2.0)) == (550, 0.0)


def test_the_length_of_a_training_is_known_once_every_worker_has_told() -> None:
    standing = Standing()
    standing.hear(WORKERS[0], report(expected_samples=1000, samples_per_step=10, behind=2), 0.0)
    standing.hear(WORKERS[1], report(expected_samples=None, samples_per_step=None, behind=1), 0.0)
    assert standing.expected_samples is None
    standing.hear(WORKERS[1], report(expected_samples=3000, samples_per_step=30, behind=1), 0.0)
    assert (standing.expected_samples, standing.samples_per_step, standing.most_behind) == (4000, 20, 2)


def test_steps_of_workers_that_left_still_count_and_nothing_else_of_them_does() -> None:
    standing = Standing({0: 5, 2: 40})  # as the run knows them: the third left before
    assert standing.step(synchronous=False) == 45
    said = {"samples_per_step": 10, "expected_samples": 1000}
    standing.hear(WORKERS[0], report(steps=6, behind=1, loss=0.5, **said), 0.0)
    standing.hear(WORKERS[1], report(steps=3, behind=9, loss=9.0, **said), 0.0)
    assert standing.step(synchronous=False) == 49
    standing.resized(1)
    standing.hear(WORKERS[1], report(steps=1, behind=9, loss=9.0, **said), 1.0)  # late
    assert (standing.step(synchronous=False), standing.step(synchronous=True)) == (49, 40)
    assert (standing.most_behind, standing.mean_loss) == (1, 0.5)
    assert standing.expected_samples == 1000 + 3 * 10


def counted(scores: list[float], labels: list[float]) -> bytes:
    metrics = Metrics()
    metrics.add(torch.tensor(scores), torch.tensor(labels))
    metrics.add_loss(sum(scores))
    return json.dumps({"sums": metrics.to_plain()}).encode()


def test_auc_and_loss_are_those_of_all_lives_of_all_workers() -> None:
    measured = Measured()
    assert measured.figures() == {}
    measured.hear(WORKERS[0], counted([1.0, 3.0], [0, 1]))
    measured.hear(WORKERS[1], counted([2.0], [1]))
    measured.hear(Member(Role.WORKER, 1, 2), counted([4.0], [0]))
    assert measured.figures() == {"loss": pytest.approx(10 / 3), "auc": 0.5}


def test_what_was_counted_after_a_checkpoint_is_forgotten_when_everyone_goes_back_to_it() -> None:
    measured = Measured()
    measured.hear(WORKERS[0], counted([1.0, 3.0], [0, 1]))
    measured.saved(1)
    measured.hear(WORKERS[0], counted([1.0, 3.0, 9.0], [0, 1, 0]))
    measured.committed(1)
    measured.went_back(1)
    assert measured.figures()["auc"] == 1.0
