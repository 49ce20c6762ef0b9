"""The DLRM that the emulation trains on the synthetic stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.optim import SGD, Optimizer

from benchmarks.claims._emulation_cases import Case
from benchmarks.data.schema import Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from benchmarks.training import evaluate, train_step
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
    """One training from its start."""

    def __init__(self, model: Model, seed: int) -> None:
        self.steps = model.steps
        self._batches, self._test = _data(model, seed)
        cardinalities = ClickStream(seed, model.scale).cardinalities
        widths = (model.width,)
        self.model = DLRM(cardinalities, model.dim, bottom=widths, top=widths, seed=seed)
        tables = list(self.model.emb.parameters())
        rest = [*self.model.bottom.parameters(), *self.model.top.parameters()]
        self.optimizers: Sequence[Optimizer] = [SGD(tables, lr=model.table_rate), SGD(rest, lr=model.rest_rate)]

    def step(self, number: int) -> None:
        """Train on a batch."""
        train_step(self.model, self._batches[number], self.optimizers)

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
