"""The DLRM that the emulation trains on the synthetic stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from benchmarks.claims._emulation_cases import Case
from benchmarks.data.schema import Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from benchmarks.models.layers import pairwise_dots
from benchmarks.training import evaluate
from holdfast.emulation import emulate, undisturbed

TEST_START = 15_000_000  # of the stream: samples that no training sees, while most popular values are the same
TEST_BATCH = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained, on how much. SGD, as CPR does; rates at which lost rows hurt and the AUC is near its best."""

    scale: float  # of Criteo Kaggle's cardinalities
    steps: int
    batch_size: int
    test_samples: int
    dim: int = 8
    width: int = 32
    table_rate: float = 10.0
    rest_rate: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What one training came to."""

    seed: int
    key: str
    auc: float
    pls: float


class DlrmTraining:
    """One training from its start.

    The tables are parts of one matrix, and rows of all of them are looked up at once: half the time of 26 look-ups.
    Each still is a parameter with a sparse gradient of its own, as optimizer and selectors know it.
    """

    def __init__(self, model: Model, seed: int) -> None:
        self.steps = model.steps
        self._batches, self._test = _data(model, seed)
        cardinalities = ClickStream(seed, model.scale).cardinalities
        widths = (model.width,)
        self.model = DLRM(cardinalities, model.dim, bottom=widths, top=widths, seed=seed)
        self._rows = torch.cat([table.detach() for table in self.model.emb.parameters()])
        self._first_rows = torch.tensor([0, *accumulate(cardinalities[:-1])])
        for table, part in zip(self.model.emb, self._rows.split(cardinalities), strict=True):
            table.weight = nn.Parameter(part)
        self._tables = list(self.model.emb.parameters())
        self._rest = [*self.model.bottom.parameters(), *self.model.top.parameters()]
        self.optimizers: Sequence[Optimizer] = [
            SGD(self._tables, lr=model.table_rate),
            SGD(self._rest, lr=model.rest_rate, foreach=True),
        ]

    def step(self, number: int) -> None:
        """Train on a batch."""
        batch = self._batches[number]
        vectors = self._rows[batch.ids + self._first_rows].requires_grad_()
        loss = F.binary_cross_entropy_with_logits(self._logits(batch.dense, vectors), batch.labels)
        of_vectors, *of_rest = torch.autograd.grad(loss, [vectors, *self._rest])
        self._set_table_gradients(batch.ids, of_vectors)
        for parameter, gradient in zip(self._rest, of_rest, strict=True):
            parameter.grad = gradient
        for optimizer in self.optimizers:
            optimizer.step()

    def _logits(self, dense: Tensor, vectors: Tensor) -> Tensor:
        """What DLRM.forward gives, without its look-up."""
        bottom = F.relu(self.model.bottom(dense))
        dots = pairwise_dots(torch.cat([bottom.unsqueeze(1), vectors], dim=1))
        logits: Tensor = self.model.top(torch.cat([bottom, dots], dim=1))
        return logits.squeeze(-1)

    def _set_table_gradients(self, ids: Tensor, of_vectors: Tensor) -> None:
        by_field = zip(self._tables, ids.t().contiguous(), of_vectors.transpose(0, 1).contiguous(), strict=True)
        for table, rows, values in by_field:
            table.grad = torch.sparse_coo_tensor(rows[None], values, table.shape, check_invariants=False)

    def auc(self) -> float:
        """On samples of later."""
        return evaluate(self.model, self._test)


def train(case: Case, model: Model) -> Trained:
    """One case, in one thread, so that it comes to the same on every machine of a kind."""
    torch.set_num_threads(1)
    training = DlrmTraining(model, case.seed)
    if case.way is None or case.schedule is None:
        return Trained(seed=case.seed, key=case.key, auc=undisturbed(training), pls=0.0)
    outcome = emulate(training, case.way.emulation(case.schedule, model.steps), case.way.priority)
    assert outcome.auc is not None
    return Trained(seed=case.seed, key=case.key, auc=outcome.auc, pls=outcome.pls)


@lru_cache(maxsize=1)  # the trainings of a seed follow each other
def _data(model: Model, seed: int) -> tuple[list[Batch], list[Batch]]:
    stream = ClickStream(seed, model.scale)
    batches = [stream.batch(number, model.batch_size) for number in range(model.steps)]
    starts = range(TEST_START, TEST_START + model.test_samples, TEST_BATCH)
    return batches, [stream.samples(start, min(TEST_BATCH, model.test_samples)) for start in starts]
