"""What one rank holds of a table that is divided over the ranks of a job."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.types import Strip


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Rows ``first ..`` of a table, possibly none, and of each of them the values ``value ..``.

    How many of both, the tensors say. Where the values are not all of a row, they are stored as a strip.
    """

    table: str  # the name of the whole table
    rows: int  # of the whole table
    width: int  # values of a row of the whole table
    first: int = 0
    value: int = 0
    replica: int = 0  # the number of this rank among those that hold the same
    replicas: int = 1

    def strip(self, values: int) -> Strip | None:
        """The strip that so many values of each row are; None: the whole table."""
        return None if values == self.width else Strip(table=self.table, first=self.value, width=self.width)

    def name(self, values: int) -> str:
        """What is stored with so many values of each row is called like this."""
        strip = self.strip(values)
        return self.table if strip is None else strip.name(values)

    def inside(self, ids: Tensor, count: int) -> Tensor:
        """Those of the table's rows that are among the ``count`` held here, by their numbers in the tensors."""
        local = ids.to(torch.int64) - self.first
        found: Tensor = local[(local >= 0) & (local < count)]
        return found
