"""The same model without TorchRec: plain embeddings under the same names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.integrations.torchrec.model import BAGS, DIM, IDS, LR, OPTIMIZERS, SEQUENCES, batch
from tests.jobs.arrays import Arrays


class PlainModel(nn.Module):
    """``nn.EmbeddingBag`` and ``nn.Embedding``, and a dense layer over them."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        self.bags, self.sequences = nn.Module(), nn.Module()
        self.bags.embedding_bags = nn.ModuleDict(
            {name: nn.EmbeddingBag(rows, DIM, mode="sum", sparse=sparse) for name, rows in BAGS.items()}
        )
        self.sequences.embeddings = nn.ModuleDict(
            {name: nn.Embedding(rows, DIM, sparse=sparse) for name, rows in SEQUENCES.items()}
        )
        self.top = nn.Linear(DIM * (len(BAGS) + len(SEQUENCES)), 1)

    def forward(self, ids: dict[str, Tensor]) -> Tensor:
        pooled = [bag(ids[f"f_{name}"]) for name, bag in self.bags.embedding_bags.items()]
        means = [table(ids[f"f_{name}"]).mean(1) for name, table in self.sequences.embeddings.items()]
        return self.top(torch.cat([*pooled, *means], dim=1)).squeeze(1)

    def tables(self) -> dict[str, nn.Parameter]:
        return {name: each for name, each in self.named_parameters() if not name.startswith("top.")}


def plain_optimizers(model: PlainModel, optimizer: str) -> list[Optimizer]:
    tables = OPTIMIZERS[optimizer][1](list(model.tables().values()), lr=LR)
    return [torch.optim.Adam(model.top.parameters(), lr=0.01), tables]


def plain_step(model: PlainModel, optimizers: list[Optimizer], step: int) -> None:
    features, target = batch(step, 0, 1)
    ids = {key: features[key].values().view(-1, IDS) for key in features.keys()}  # noqa: SIM118 - not a dict
    for optimizer in optimizers:
        optimizer.zero_grad()
    (model(ids) - target).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def held_by(model: PlainModel, optimizers: list[Optimizer]) -> Arrays:
    """Weights and slots, as ranks' are joined."""
    found = {name: value.detach().clone().numpy() for name, value in model.state_dict().items()}
    for name, parameter in model.tables().items():
        kept = optimizers[1].state.get(parameter, {}).get("sum")
        if kept is not None:
            values = kept.clone().numpy()
            found[f"{name}.momentum1" + ("" if values.shape[1] > 1 else "[0]")] = (
                values if values.shape[1] > 1 else values.reshape(-1)
            )
    return found
