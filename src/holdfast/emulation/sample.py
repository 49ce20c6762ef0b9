"""A small training that needs no data: synthetic clicks on popular and rare items, and a model that learns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from holdfast.policy.arguments import require_count

ROWS: Final = (8000, 3000, 1000, 300, 100, 30)
DIM: Final = 8
BATCH: Final = 128
TEST_SAMPLES: Final = 8192
TASTE_DIM: Final = 3
SKEW: Final = 1.1  # row n is used in proportion to (n + 2)^-1.1
_TABLE_RATE: Final = 4.0
_REST_RATE: Final = 0.1


class SampleModel(nn.Module):
    """A small DLRM without dense features: the products of every two fields' vectors, and an MLP above them."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.ModuleList(nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for rows in ROWS)
        for table in self.emb.parameters():
            nn.init.uniform_(table, -(len(table) ** -0.5), len(table) ** -0.5)
        fields = len(ROWS)
        self.top = nn.Sequential(nn.Linear(fields * DIM + fields * (fields - 1) // 2, 32), nn.ReLU(), nn.Linear(32, 1))
        self._pairs = tuple(torch.tril_indices(fields, fields, offset=-1))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``[samples]`` of ids ``[samples, fields]``."""
        vectors = torch.stack([table(ids[:, field : field + 1]) for field, table in enumerate(self.emb)], dim=1)
        first, second = self._pairs
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, first, second]
        logits: Tensor = self.top(torch.cat([vectors.flatten(1), products], dim=1))
        return logits.squeeze(-1)


class SampleTraining:
    """Everything follows from the seed: what is popular, who clicks on what, and the model's initial weights."""

    def __init__(self, seed: int, steps: int) -> None:
        require_count(self, "steps", steps)
        self.steps = steps
        self._seed = seed
        self._stream = _Stream(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = SampleModel()
        tables, rest = list(self.model.emb.parameters()), list(self.model.top.parameters())
        self.optimizers: Sequence[Optimizer] = [SGD(tables, lr=_TABLE_RATE), SGD(rest, lr=_REST_RATE)]

    def step(self, number: int) -> None:
        """Train on the batch of that number."""
        ids, labels = self._stream.samples(number + 1, BATCH)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        F.binary_cross_entropy_with_logits(self.model(ids), labels).backward()
        for optimizer in self.optimizers:
            optimizer.step()

    @torch.no_grad()
    def auc(self) -> float:
        """AUC on a held-out batch."""
        ids, labels = self._stream.samples(0, TEST_SAMPLES)
        return _auc(labels.numpy() > 0, self.model(ids).numpy())


class _Stream:
    """Batch n is a function of the seed and n."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self._seed = seed
        self._popularity = [np.cumsum(_shares(rows)) for rows in ROWS]
        self._row_of = [rng.permutation(rows) for rows in ROWS]  # popular rows lie all over a table
        self._effects = [rng.standard_normal(rows) for rows in ROWS]
        self._tastes = [rng.standard_normal((rows, TASTE_DIM)) for rows in ROWS]

    def samples(self, number: int, count: int) -> tuple[Tensor, Tensor]:
        """Ids and labels."""
        rng = np.random.default_rng([self._seed, 1, number])
        uniform = rng.random((count, len(ROWS)))
        ids = np.stack(
            [
                row_of[np.minimum(np.searchsorted(popularity, uniform[:, field]), len(row_of) - 1)]
                for field, (popularity, row_of) in enumerate(zip(self._popularity, self._row_of, strict=True))
            ],
            axis=1,
        )
        clicked = rng.random(count) < 1 / (1 + np.exp(-self._logits(ids)))
        return torch.from_numpy(ids), torch.from_numpy(clicked.astype(np.float32))

    def _logits(self, ids: np.ndarray) -> np.ndarray:
        """An effect for every row, and how well the tastes of two halves of the fields agree."""
        effects = sum(effect[ids[:, field]] for field, effect in enumerate(self._effects))
        tastes = [taste[ids[:, field]] for field, taste in enumerate(self._tastes)]
        agreement = (sum(tastes[0::2]) * sum(tastes[1::2])).sum(axis=1)
        return np.asarray(0.5 * effects + 0.25 * agreement - 1.0)


def _shares(rows: int) -> np.ndarray:
    weights = (np.arange(rows) + 2.0) ** -SKEW
    return np.asarray(weights / weights.sum())


def _auc(clicked: np.ndarray, scores: np.ndarray) -> float:
    """The chance that a click scores above what is none, a tie counting half."""
    ordered = np.sort(scores[~clicked])
    below = np.searchsorted(ordered, scores[clicked], "left") + np.searchsorted(ordered, scores[clicked], "right")
    return float(below.mean() / 2 / len(ordered))
