"""Loss and AUC of a job, from what the lives of its workers have counted."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest

from holdfast.cluster.controller.measured import Measured
from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.train.metrics import Metrics


def tell(measured: Measured, worker: int, incarnation: int, losses: float, steps: int = 1) -> None:
    """A life says what it has counted so far."""
    counted = Metrics(losses=losses, steps=steps)
    counted.positives[9], counted.negatives[3] = steps, steps
    report = json.dumps({"steps": steps, "sums": counted.to_plain()}).encode()
    measured.hear(Member(Role.WORKER, worker, incarnation), report)


def test_every_life_counts_with_what_it_said_last() -> None:
    measured = Measured()
    assert measured.figures() == {}
    tell(measured, 0, 1, losses=9.0)
    tell(measured, 0, 1, losses=6.0, steps=2)
    tell(measured, 1, 1, losses=4.0)
    assert measured.figures() == {"loss": pytest.approx(10 / 3), "auc": 1.0}
    tell(measured, 0, 2, losses=2.0)
    assert measured.figures()["loss"] == pytest.approx(12 / 4)
    tell(measured, 0, 2, losses=3.0, steps=2)
    assert measured.figures()["loss"] == pytest.approx(13 / 5)
    tell(measured, 0, 1, losses=100.0)  # too late
    assert measured.figures()["loss"] == pytest.approx(13 / 5)


def test_what_was_counted_behind_a_checkpoint_that_everyone_goes_back_to_does_not_count() -> None:
    measured = Measured()
    tell(measured, 0, 1, losses=2.0)
    measured.saved(1)
    tell(measured, 0, 1, losses=50.0, steps=2)
    measured.saved(2)
    measured.committed(1)
    tell(measured, 0, 2, losses=70.0)
    measured.went_back(1)
    assert measured.figures()["loss"] == 2.0
    tell(measured, 0, 3, losses=4.0)
    assert measured.figures()["loss"] == 3.0
    measured.went_back(0)
    assert measured.figures() == {}


def kept_bytes(lives: int) -> int:
    """What is kept of two workers with so many lives."""
    measured = Measured()
    tracemalloc.start()
    try:
        for life in range(1, lives + 1):
            tell(measured, life % 2, life, losses=1.0)
            measured.saved(life)
            measured.committed(life)
        assert measured.figures()["loss"] == 1.0
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_many_deaths_take_no_more_memory_than_few() -> None:
    assert kept_bytes(60) < 2 * kept_bytes(6)
