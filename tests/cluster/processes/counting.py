"""A training that counts how often it takes each sample. Which are whose does not depend on the number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

import holdfast as hf
from tests.cluster.processes import programs
from tests.cluster.processes.gate import Gate
from tests.cluster.processes.twin import Recipe

PLACES, SAMPLES, BATCH = 3, 48, 4  # samples of each place
STEPS = SAMPLES // BATCH  # of each worker, for all of its data
_OPTIMIZER = hf.SGD(1.0)
_TABLES = hf.tables(min_bytes=512, init={"seen*": hf.Constant(0.0), "*": hf.Uniform(-0.3, 0.3)})


class CountingNet(programs.Net):
    """A net, and a table with a row for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Embedding(PLACES * SAMPLES, 4, sparse=True)

    def forward(self, dense: Tensor, ids: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(dense, ids), self.seen(numbers)


def build_counting() -> nn.Module:
    return CountingNet()


def train_counting(worker: hf.Worker) -> None:
    """Every step moves the row of each of its samples by 1."""
    _train(worker, 1)


def train_counting_in_step(worker: hf.Worker) -> None:
    """The same where a step is taken on the mean of all workers' gradients."""
    _train(worker, worker.count)


def _train(worker: hf.Worker, weight: int) -> None:
    programs.seed(worker.index)
    gate, samples = Gate(), programs.Samples(PLACES * SAMPLES)
    data = TensorDataset(samples.dense, samples.ids, samples.labels, torch.arange(len(samples)))
    part = Subset(data, range(worker.index * SAMPLES, (worker.index + 1) * SAMPLES))
    for dense, ids, labels, numbers in worker.batches(DataLoader(part, batch_size=BATCH, shuffle=True)):
        if not gate.passes(worker):
            return
        logits, seen = worker.model(dense, ids, numbers)
        (F.binary_cross_entropy_with_logits(logits, labels) + weight * seen[:, 0].sum()).backward()
        worker.step()


JOB: dict[str, Any] = {
    "model": build_counting,
    "train": train_counting,
    "optimizer": _OPTIMIZER,
    "tables": _TABLES,
    "servers": 2,
}
RECIPE = Recipe(model=build_counting, optimizer=_OPTIMIZER, tables=_TABLES, servers=2)


def times_taken(url: Path) -> Tensor:
    """How often each sample was counted by the newest checkpoint: a row for each place."""
    rows = hf.open_run(url).read_rows("seen", range(PLACES * SAMPLES))["weight"]
    return -rows[:, 0].reshape(PLACES, SAMPLES)
