"""A model small enough to train thousands of steps in a test, deterministic in its seed and in the batch's number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer, SparseAdam

ROWS = (300, 40)
DIM = 4


class Tiny(nn.Module):
    """Two tables and a linear layer."""

    def __init__(self, rows: Sequence[int] = ROWS, dim: int = DIM, *, sparse: bool = True) -> None:
        super().__init__()
        self.emb = nn.ModuleList(nn.EmbeddingBag(count, dim, mode="sum", sparse=sparse) for count in rows)
        self.top = nn.Linear(dim * len(rows), 1)

    def forward(self, ids: Tensor) -> Tensor:
        looked_up = [table(ids[:, index] % table.num_embeddings) for index, table in enumerate(self.emb)]
        return self.top(torch.cat(looked_up, dim=1))


def build(seed: int = 0, rows: Sequence[int] = ROWS) -> tuple[Tiny, list[Optimizer]]:
    """The model and its optimizers: SparseAdam for the tables, Adam for the rest."""
    torch.manual_seed(seed)
    model = Tiny(rows)
    return model, [SparseAdam(list(model.emb.parameters())), Adam(model.top.parameters())]


def ids_of(step: int, batch: int = 4, lookups: int = 2) -> Tensor:
    """The ids of one batch."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 100_000, (batch, len(ROWS), lookups), generator=generator)


def train_step(model: nn.Module, optimizers: Iterable[Optimizer], step: int) -> Tensor:
    """One optimizer step on the batch of that number."""
    optimizers = list(optimizers)
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = (model(ids_of(step)) - 1.0).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.detach()


def snapshot(model: nn.Module, optimizers: Iterable[Optimizer]) -> dict[str, Tensor]:
    """Every bit of the training state, copied."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, values in enumerate(optimizer.state.values()):
            state |= {f"{number}/{index}/{key}": torch.as_tensor(value).clone() for key, value in values.items()}
    return state


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two snapshots are equal bit for bit."""
    return first.keys() == second.keys() and all(_bits_equal(first[name], second[name]) for name in first)


def uninterrupted(steps: int, seed: int = 0) -> dict[str, Tensor]:
    """The state after so many steps of a run that nothing happens to."""
    model, optimizers = build(seed)
    for step in range(steps):
        train_step(model, optimizers, step)
    return snapshot(model, optimizers)


def _bits_equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
