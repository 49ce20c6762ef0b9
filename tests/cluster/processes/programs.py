"""Models and training functions that workers of these tests import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset

import holdfast as hf
from holdfast.cluster.train.loop import TrainingLoop
from tests.cluster.processes.gate import Gate

ROWS = (600, 301, 7)  # the last table is small: dense in a cluster
DIM = 8
BATCH = 16
ON_SERVERS = hf.tables(min_bytes=1024, init=hf.Uniform(-0.3, 0.3))


class Net(nn.Module):
    """Three tables and a dense part."""

    def __init__(self, rows: tuple[int, ...] = ROWS) -> None:
        super().__init__()
        self.emb = nn.ModuleList([nn.EmbeddingBag(each, DIM, mode="sum", sparse=True) for each in rows])
        self.top = nn.Sequential(nn.Linear(4 + len(rows) * DIM, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        found = [table(ids[:, i : i + 1]) for i, table in enumerate(self.emb)]
        return self.top(torch.cat([dense, *found], 1)).squeeze(1)


class Samples(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Drawn from a seed; some ids are much more frequent than others."""

    def __init__(self, count: int, rows: tuple[int, ...] = ROWS) -> None:
        draw = torch.Generator().manual_seed(3)
        self.ids = torch.stack([(torch.rand(count, generator=draw) ** 3 * each).long() for each in rows], 1)
        self.dense = torch.randn(count, 4, generator=draw)
        self.labels = (self.dense[:, 0] + self.ids[:, -1] * 0.1 > 0).float()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.dense[number], self.ids[number], self.labels[number]


def build_net() -> nn.Module:
    return Net()


def loader_of(index: int, count: int, *, samples: int = 64 * BATCH) -> DataLoader[tuple[Tensor, Tensor, Tensor]]:
    """A worker's share, in an order that comes from its random generator."""
    share = Subset(Samples(samples), range(index, samples, count))
    return DataLoader(share, batch_size=BATCH // count, shuffle=True)


def seed(worker: int) -> None:
    """Begin a worker's random numbers. One that takes another's place goes on with those of its predecessor."""
    torch.manual_seed(7 + worker)


def take_step(worker: TrainingLoop, batch: tuple[Tensor, Tensor, Tensor]) -> None:
    dense, ids, labels = batch
    loss = F.binary_cross_entropy_with_logits(worker.model(dense, ids), labels)
    loss.backward()
    worker.step(loss=loss)


def train_gated(worker: hf.Worker) -> None:
    """As many steps as the gate lets pass, over any number of epochs."""
    pass_gate(worker, loader_of(worker.index, worker.count), take_step)


def pass_gate(worker: hf.Worker, loader: Iterable[Any], step: Callable[[TrainingLoop, Any], None]) -> None:
    gate = Gate()
    seed(worker.index)
    if not gate.passes(worker):
        return
    for batch in worker.batches(loader, epochs=None):
        step(worker, batch)
        if not gate.passes(worker):
            return
