"""Logistic regression: one number a value of each field, added. Reading and updating rows is nearly all its work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from benchmarks.data.schema import DENSE_FIELDS
from benchmarks.models.layers import look_up, seeded, tables


class LogisticRegression(nn.Module):
    """Returns logits ``[samples]``. The tables are ``emb.0`` ... ``emb.25``, one column wide."""

    def __init__(
        self,
        cardinalities: Sequence[int],
        *,
        sparse: bool = True,
        bag: bool = True,
        seed: int = 0,
        on_servers: bool = False,
    ) -> None:
        super().__init__()
        with seeded(seed):
            self.emb = tables(cardinalities, 1, sparse=sparse, bag=bag, on_servers=on_servers)
            self.dense = nn.Linear(DENSE_FIELDS, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return cast(Tensor, self.dense(dense).squeeze(-1) + look_up(self.emb, ids).sum(dim=(1, 2)))
