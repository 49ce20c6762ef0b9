"""The touched rows of a table on a device, before anybody has listed or even counted them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.checkpoint.track.row_sets import Touched
from holdfast.kernels.bit_sets import tensors as sets


class BoundedIds(NamedTuple):
    """Ids of rows, ascending, then those of a row that is there; and how many of them count (one int64)."""

    ids: Tensor
    total: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TouchedRows:
    """Those of ``[start, stop)``. Use it before the next begin or outcome of a save (see ``Touched``)."""

    touched: Touched[Tensor]
    start: int
    stop: int

    @property
    def most(self) -> int:
        """No more than so many."""
        return min(self.stop - self.start, self.touched.most)

    def now(self) -> Tensor:
        """Their ids; waits for the device."""
        return self.touched.ids(self.start, self.stop)

    def bounded(self, length: int) -> BoundedIds:
        """Their ids in a list of this length, at least ``most``; waits for nothing."""
        bits, offset = self.touched.union(self.start, self.stop)
        ids, count = sets.list_bounded(
            bits, self.start - offset, self.stop - offset, bound=length, fill=self.start - offset
        )
        return BoundedIds(ids.add_(offset) if offset else ids, count)


def known_ids(ids: Tensor, length: int) -> BoundedIds:
    """Ids that are listed already, in a list of this length."""
    padding = ids[:1].expand(length - len(ids))
    return BoundedIds(torch.cat([ids, padding]), torch.full((1,), len(ids), device=ids.device))
