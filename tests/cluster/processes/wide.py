"""A training whose messages are large: pulls, pushes and differences have arrays that are sent without a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import holdfast as hf
from tests.cluster.processes import programs
from tests.cluster.processes.twin import Recipe

ROWS, DIM, BATCH, BATCHES = (900, 700), 256, 512, 4
UNCOPIED_BYTES = 1 << 16  # from which size on ZeroMQ's binding sends an array as it lies in memory


class WideNet(nn.Module):
    """Two tables, and a dense part that is large enough for a server's piece of it to be sent uncopied, too."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.ModuleList([nn.EmbeddingBag(each, DIM, mode="sum", sparse=True) for each in ROWS])
        self.top = nn.Sequential(nn.Linear(4 + len(ROWS) * DIM, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        found = [table(ids[:, number : number + 1]) for number, table in enumerate(self.emb)]
        return self.top(torch.cat([dense, *found], 1)).squeeze(1)


def build_wide() -> nn.Module:
    return WideNet()


def loader_of(index: int, count: int) -> DataLoader[Any]:
    """A worker's share, in an order that comes from its random generator."""
    draw, samples = torch.Generator().manual_seed(5), BATCHES * BATCH
    ids = torch.stack([torch.randint(each, (samples,), generator=draw) for each in ROWS], 1)
    dense = torch.randn(samples, 4, generator=draw)
    data = TensorDataset(dense, ids, (dense[:, 0] > 0).float())
    return DataLoader(Subset(data, range(index, samples, count)), batch_size=BATCH // count, shuffle=True)


def train_wide(worker: hf.Worker) -> None:
    programs.pass_gate(worker, loader_of(worker.index, worker.count), programs.take_step)


def recipe(**options: Any) -> Recipe:
    return Recipe(model=build_wide, loader=loader_of, **options)


JOB: dict[str, Any] = {"model": build_wide, "train": train_wide}


def smallest_message_bytes(workers: int, servers: int) -> int:
    """The weights that a server is asked for by the smallest batch, of which its hosts get half each, with slots."""
    batches = [ids for index in range(workers) for _, ids, _ in loader_of(index, workers)]
    rows = min(min(len(ids[:, number].unique()) for ids in batches) for number in range(len(ROWS)))
    return len(ROWS) * rows // servers * DIM * 4
