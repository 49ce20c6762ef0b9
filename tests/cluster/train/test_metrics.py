"""Metrics of workers add up to those of one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.train.metrics import Metrics, _buckets
from holdfast.errors import ConfigurationError


def exact_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    positives, negatives = scores[labels == 1], scores[labels == 0]
    wins = (positives[:, None] > negatives).sum() + 0.5 * (positives[:, None] == negatives).sum()
    return float(wins / (len(positives) * len(negatives)))


@pytest.mark.parametrize("squash", [lambda scores: scores, torch.sigmoid, lambda scores: torch.sigmoid(scores - 6)])
def test_auc_is_near_the_exact_one(squash: object) -> None:
    draw = torch.Generator().manual_seed(0)
    labels = (torch.rand(3000, generator=draw) < 0.3).float()
    scores = squash(torch.randn(3000, generator=draw) + labels)  # type: ignore[operator]
    metrics = Metrics()
    metrics.add(scores, labels)
    assert metrics.auc == pytest.approx(exact_auc(scores.numpy(), labels.numpy()), abs=1e-3)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_a_greater_score_is_never_in_a_lower_bucket(scores: list[float]) -> None:
    ordered = torch.tensor(sorted(scores), dtype=torch.float32)
    buckets = _buckets(ordered)
    assert (buckets.diff() >= 0).all() and buckets.min() >= 0 and buckets.max() < 1 << 16


def test_parts_of_several_workers_merge_into_the_whole() -> None:
    scores, labels = torch.randn(300), torch.arange(300) % 3 == 0
    whole, parts = Metrics(), [Metrics() for _ in range(3)]
    whole.add(scores, labels)
    for number, part in enumerate(parts):
        part.add(scores[number * 100 : (number + 1) * 100], labels[number * 100 : (number + 1) * 100])
        part.add_loss(float(number))
    received = [Metrics.from_plain(json.loads(json.dumps(part.to_plain()))) for part in parts]
    merged = received[0].merge(received[1:])
    assert merged.auc == whole.auc and merged.samples == 300 and merged.loss == 1.0 and merged.steps == 3


def test_what_cannot_be_counted_is_none_or_left_out() -> None:
    metrics = Metrics()
    assert metrics.auc is None and metrics.loss is None
    metrics.add(torch.tensor([[0.5], [torch.nan]]), torch.tensor([1.0, 0.0]))
    assert metrics.auc is None and metrics.invalid == 1 and metrics.samples == 1
    with pytest.raises(ConfigurationError, match="3 scores came with 2 labels"):
        metrics.add(torch.zeros(3), torch.zeros(2))
