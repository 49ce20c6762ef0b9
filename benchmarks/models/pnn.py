"""PNN with inner products: the vectors and their pairwise dot products through one MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from benchmarks.data.schema import DENSE_FIELDS
from benchmarks.models.layers import FieldVectors, look_up, mlp, pairwise_dots, seeded, tables


class PNN(nn.Module):
    """Returns logits ``[samples]``. The tables are ``emb.0`` ... ``emb.25``.

    IncrCP states a model of 21 GB and a batch of 512 only; dim and widths are those DeepFM's paper compares it with.
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
        fields = len(cardinalities) + DENSE_FIELDS
        with seeded(seed):
            self.emb = tables(cardinalities, dim, sparse=sparse, bag=bag)
            self.dense_vectors = FieldVectors(DENSE_FIELDS, dim)
            self.deep = mlp((fields * dim + fields * (fields - 1) // 2, *hidden, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        vectors = torch.cat([self.dense_vectors(dense), look_up(self.emb, ids)], dim=1)
        products = torch.cat([vectors.flatten(start_dim=1), pairwise_dots(vectors)], dim=1)
        return cast(Tensor, self.deep(products)).squeeze(-1)
