"""What the three models share: tables, field vectors, pairwise products, MLPs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from ``seed`` inside the block and leave the global generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tables(
    cardinalities: Sequence[int], dim: int, *, sparse: bool, bag: bool, on_servers: bool = False
) -> nn.ModuleList:
    """One table per categorical field, uniform in ±1/√rows as the DLRM reference starts them.

    On servers they start as the cluster declares.
    """
    return nn.ModuleList(_table(rows, dim, sparse=sparse, bag=bag, on_servers=on_servers) for rows in cardinalities)


def _table(rows: int, dim: int, *, sparse: bool, bag: bool, on_servers: bool) -> nn.Module:
    # The weight is passed in: torch's own start would fill gigabytes with normal numbers first.
    bound = max(rows, 1) ** -0.5
    weight = None if on_servers else torch.empty(rows, dim).uniform_(-bound, bound)
    if bag:
        return nn.EmbeddingBag(rows, dim, mode="sum", sparse=sparse, _weight=weight)
    return nn.Embedding(rows, dim, sparse=sparse, _weight=weight)


def look_up(fields: nn.ModuleList, ids: Tensor) -> Tensor:
    """Vectors ``[samples, fields, dim]``; the vectors of a field with several values are added."""
    values = ids.unsqueeze(-1) if ids.dim() == 2 else ids
    return torch.stack([_field_vector(field, values[:, number]) for number, field in enumerate(fields)], dim=1)


def _field_vector(field: nn.Module, values: Tensor) -> Tensor:
    vectors = cast(Tensor, field(values))
    return vectors if isinstance(field, nn.EmbeddingBag) else vectors.sum(dim=1)


class FieldVectors(nn.Module):
    """A learned vector per dense field, scaled by the field's value: dense fields among the categorical ones."""

    def __init__(self, fields: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fields, dim).uniform_(-0.1, 0.1))

    def forward(self, dense: Tensor) -> Tensor:
        return dense.unsqueeze(-1) * self.weight


def pairwise_dots(vectors: Tensor) -> Tensor:
    """The dot product of every two fields' vectors: ``[samples, fields·(fields−1)/2]``."""
    products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
    return products.index_select(1, _below_diagonal(vectors.shape[1], vectors.device))


@cache
def _below_diagonal(fields: int, device: torch.device) -> Tensor:
    """Of a square matrix, row after row."""
    below: Tensor = torch.tril_indices(fields, fields, offset=-1, device=device)
    return below[0] * fields + below[1]


def mlp(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers of the given widths, ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
