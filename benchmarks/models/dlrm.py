"""DLRM: dense features through a bottom MLP, dot products with the tables' vectors, a top MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.data.schema import DENSE_FIELDS
from benchmarks.models.layers import look_up, mlp, pairwise_dots, seeded, tables


class DLRM(nn.Module):
    """Returns logits ``[samples]``. The tables are ``emb.0`` ... ``emb.25``.

    The default widths are CPR's for Criteo Kaggle, whose vectors have 16 numbers (64 bytes); for Terabyte it takes
    dim 64, bottom (512, 256) and top (512, 512, 256). CPR prints the width of the top MLP's input as fields·dim (432),
    which is that of plain concatenation; with dot products it is dim + pairs (367).
    """

    def __init__(
        self,
        cardinalities: Sequence[int],
        dim: int = 16,
        *,
        sparse: bool = True,
        bag: bool = True,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        seed: int = 0,
        on_servers: bool = False,
    ) -> None:
        super().__init__()
        fields = len(cardinalities) + 1
        with seeded(seed):
            self.emb = tables(cardinalities, dim, sparse=sparse, bag=bag, on_servers=on_servers)
            self.bottom = mlp((DENSE_FIELDS, *bottom, dim))
            self.top = mlp((dim + fields * (fields - 1) // 2, *top, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = F.relu(self.bottom(dense))
        vectors = torch.cat([bottom.unsqueeze(1), look_up(self.emb, ids)], dim=1)
        return cast(Tensor, self.top(torch.cat([bottom, pairwise_dots(vectors)], dim=1))).squeeze(-1)
