"""A training that counts every push: each moves the rows of its samples, and the whole dense part, by 1.

Where all workers have gone through their data the same number of times, every count is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import holdfast as hf
from holdfast.cluster.train.loop import TrainingLoop
from tests.cluster.processes import programs
from tests.cluster.processes.twin import Recipe, newest_checkpoint

WORKERS, SAMPLES, BATCH = 2, 768, 96  # samples of each worker
EPOCH = SAMPLES // BATCH  # steps of each worker
WIDTH, DENSE = 1024, 60_000  # what a server is sent of a batch, and of the dense part, is not copied on its way


class TallyNet(nn.Module):
    """A row for each sample, and a dense part."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Embedding(WORKERS * SAMPLES, WIDTH, sparse=True)
        self.pushes = nn.Parameter(torch.zeros(DENSE))

    def forward(self, numbers: Tensor) -> Tensor:
        return self.seen(numbers).sum() + self.pushes.sum()


def build_tally() -> nn.Module:
    return TallyNet()


def take_step(worker: TrainingLoop, batch: tuple[Tensor]) -> None:
    worker.model(*batch).backward()
    worker.step()


def train_tally(worker: hf.Worker) -> None:
    own = range(worker.index * SAMPLES, (worker.index + 1) * SAMPLES)
    data = Subset(TensorDataset(torch.arange(WORKERS * SAMPLES)), own)
    programs.pass_gate(worker, DataLoader(data, batch_size=BATCH, shuffle=True), take_step)


_SETTINGS: dict[str, Any] = {
    "model": build_tally,
    "optimizer": hf.SGD(1.0),
    "dense_optimizer": hf.SGD(1.0),
    "tables": hf.tables(min_bytes=1 << 20, init=hf.Constant(0.0)),
    "workers": WORKERS,
}
JOB = {**_SETTINGS, "train": train_tally}


def recipe(**options: Any) -> Recipe:
    return Recipe(**_SETTINGS, **options)


def rows_counted(url: Path, recipe: Recipe) -> set[float]:
    """How often rows were moved, by the newest checkpoint: 3.0 alone where each sample was taken three times."""
    shards = [newest_checkpoint(url, recipe, server) for server in range(recipe.servers)]
    return set(np.unique(-np.concatenate([shard.groups[0].weights for shard in shards])).tolist())


def pushes_counted(url: Path, recipe: Recipe) -> set[float]:
    """How often dense numbers were moved."""
    shards = [newest_checkpoint(url, recipe, server) for server in range(recipe.servers)]
    return set(np.unique(-np.concatenate([shard.dense.values for shard in shards])).tolist())
