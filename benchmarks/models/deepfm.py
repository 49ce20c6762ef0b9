"""DeepFM: a factorization machine and an MLP over the same vectors, added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.data.schema import DENSE_FIELDS
from benchmarks.models.layers import FieldVectors, look_up, mlp, seeded, tables


class DeepFM(nn.Module):
    """Returns logits ``[samples]``. Vectors are ``emb.0`` ..., first-order weights ``linear.0`` ... (one number a row).

    IncrCP states a model of 21 GB and a batch of 512 only; dim and widths are those of DeepFM's own paper.
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int = 10,
        *,
        sparse: bool = True,
        bag: bool = True,
        hidden: Sequence[int] = (400, 400, 400),
        seed: int = 0,
    ) -> None:
        super().__init__()
        with seeded(seed):
            self.emb = tables(cardinalities, dim, sparse=sparse, bag=bag)
            self.linear = tables(cardinalities, 1, sparse=sparse, bag=bag)
            self.dense_vectors = FieldVectors(DENSE_FIELDS, dim)
            self.dense_linear = nn.Linear(DENSE_FIELDS, 1)
            self.deep = mlp(((len(cardinalities) + DENSE_FIELDS) * dim, *hidden, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        vectors = torch.cat([self.dense_vectors(dense), look_up(self.emb, ids)], dim=1)
        first_order = self.dense_linear(dense).squeeze(-1) + look_up(self.linear, ids).sum(dim=(1, 2))
        deep = self.deep(vectors.flatten(start_dim=1)).squeeze(-1)
        return cast(Tensor, first_order + second_order(vectors) + deep)


def second_order(vectors: Tensor) -> Tensor:
    """The sum of all pairs' dot products, in time linear in the fields: half of (Σv)² − Σv²."""
    return 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
