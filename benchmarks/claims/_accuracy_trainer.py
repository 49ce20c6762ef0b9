"""A DLRM under plain SGD as fast as one core trains it: all tables are one matrix, all samples are made before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from benchmarks.data.schema import DENSE_FIELDS, Batch
from benchmarks.data.synthetic import FIELDS, ClickStream
from benchmarks.models import DLRM
from benchmarks.training import auc

TABLE_RATE, DENSE_RATE = 10.0, 0.2  # as build_dlrm takes them
_AT_ONCE = 8192
_LOWER, _HIGHER = torch.tril_indices(FIELDS + 1, FIELDS + 1, offset=-1)
_PAIRS = _LOWER * (FIELDS + 1) + _HIGHER  # the places of the pairs in a square of all fields
_PAIR_OF = torch.full(((FIELDS + 1) ** 2,), len(_PAIRS))  # and which pair each place is; none on the diagonal
_PAIR_OF[_PAIRS] = _PAIR_OF[_HIGHER * (FIELDS + 1) + _LOWER] = torch.arange(len(_PAIRS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained and how long; ``scale`` multiplies Criteo Kaggle's cardinalities."""

    scale: float
    dim: int
    width: int  # of the hidden layers
    batch_size: int
    steps: int
    test_samples: int
    points: int  # at which the AUC is taken on the way, on fewer samples
    point_samples: int
    baseline_steps: int  # from a baseline to the next one, where differences are stored

    @property
    def samples(self) -> int:
        """All that it trains on."""
        return self.batch_size * self.steps

    @property
    def marks(self) -> list[int]:
        """The steps after which the AUC is taken on the way, the last one included."""
        return [self.steps * number // self.points for number in range(1, self.points + 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a model makes of test samples."""

    auc: float
    log_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The weights at the beginning of a step."""

    rows: Tensor
    dense: Sequence[Tensor]


class _Dots(torch.autograd.Function):
    """pairwise_dots with one product of matrices on the way back instead of two: what it derives is symmetric."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, _PAIRS)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (vectors,) = ctx.saved_tensors
        symmetric = F.pad(gradients[0], (0, 1)).index_select(1, _PAIR_OF)
        return torch.bmm(symmetric.view(-1, FIELDS + 1, FIELDS + 1), vectors)


def _dots(vectors: Tensor) -> Tensor:
    found: Tensor = _Dots.apply(vectors)  # type: ignore[no-untyped-call]
    return found


@numba.njit(cache=True)
def _subtract(
    rows: NDArray[np.float32], ids: NDArray[np.int32], gradients: NDArray[np.float32], rate: np.float32
) -> None:
    """``rows.index_add_(0, ids, gradients, alpha=-rate)``, which takes torch a quarter of the step."""
    for number in range(len(ids)):
        row = ids[number]
        for column in range(rows.shape[1]):
            rows[row, column] -= rate * gradients[number, column]


class Trainer:
    """Trains seed by seed the same bits on any machine of one kind: one thread, no randomness but the seed's."""

    def __init__(self, seed: int, job: Job) -> None:
        self.job = job
        stream = ClickStream(seed, job.scale)
        model = DLRM(stream.cardinalities, job.dim, bottom=(job.width,), top=(job.width,), seed=seed)
        self._model = model
        self.cardinalities = stream.cardinalities
        self._first_rows = torch.from_numpy(np.cumsum([0, *stream.cardinalities[:-1]]))
        self.rows = torch.cat([table.detach() for table in model.emb.parameters()])
        self._dense: list[Tensor] = [*model.bottom.parameters(), *model.top.parameters()]
        self._train = self._samples(stream, 0, job.samples)
        self._test = self._samples(stream, job.samples, job.test_samples)

    def ids(self, step: int) -> Tensor:
        """The rows of the matrix that a step moves, with repetitions."""
        return self._train.ids[self._slice(step)].reshape(-1)

    def step(self, number: int) -> None:
        """One step of SGD on one batch."""
        place, ids = self._slice(number), self.ids(number)
        vectors = self._look_up(ids).requires_grad_()
        logits = self._logits(self._train.dense[place], vectors)
        loss = F.binary_cross_entropy_with_logits(logits, self._train.labels[place])
        of_vectors, *of_dense = torch.autograd.grad(loss, [vectors, *self._dense])
        _subtract(self.rows.numpy(), ids.numpy(), of_vectors.reshape(len(ids), -1).numpy(), np.float32(TABLE_RATE))
        with torch.no_grad():
            torch._foreach_add_(self._dense, of_dense, alpha=-DENSE_RATE)

    @torch.no_grad()
    def score(self, samples: int) -> Score:
        """What the model makes of the first test samples."""
        dense, ids, labels = (each[:samples] for each in self._test)
        parts = [
            self._logits(dense[first : first + _AT_ONCE], self._look_up(ids[first : first + _AT_ONCE].reshape(-1)))
            for first in range(0, len(labels), _AT_ONCE)
        ]
        logits = torch.cat(parts)
        loss = F.binary_cross_entropy_with_logits(logits.double(), labels.double())
        return Score(auc=auc(labels, logits), log_loss=float(loss))

    def state(self) -> State:
        """A copy of the weights."""
        return State(rows=self.rows.clone(), dense=[each.detach().clone() for each in self._dense])

    @torch.no_grad()
    def load(self, state: State) -> None:
        """Put the weights back."""
        self.rows.copy_(state.rows)
        for own, kept in zip(self._dense, state.dense, strict=True):
            own.copy_(kept)

    def _slice(self, step: int) -> slice:
        return slice(step * self.job.batch_size, (step + 1) * self.job.batch_size)

    def _look_up(self, ids: Tensor) -> Tensor:
        return self.rows.index_select(0, ids).view(-1, FIELDS, self.job.dim)

    def _logits(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """What DLRM.forward gives, without its look-up."""
        bottom = F.relu(self._model.bottom(dense))
        fields = torch.cat([bottom.unsqueeze(1), vectors], dim=1)
        logits: Tensor = self._model.top(torch.cat([bottom, _dots(fields)], dim=1))
        return logits.squeeze(-1)

    def _samples(self, stream: ClickStream, start: int, count: int) -> Batch:
        """With the ids of the matrix's rows; in 32 bits, which is half the memory."""
        made = Batch(
            torch.empty(count, DENSE_FIELDS), torch.empty(count, FIELDS, dtype=torch.int32), torch.empty(count)
        )
        for first in range(0, count, _AT_ONCE):
            part = stream.samples(start + first, min(_AT_ONCE, count - first))
            place = slice(first, first + len(part.labels))
            made.dense[place], made.ids[place], made.labels[place] = (
                part.dense,
                part.ids + self._first_rows,
                part.labels,
            )
        return made
