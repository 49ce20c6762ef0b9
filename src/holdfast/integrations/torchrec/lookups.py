"""Sees every row that a fused optimizer changes.

The operator updates rows in the backward pass of a lookup: no optimizer steps, and no version counter moves. So each
lookup leaves a hook on its result, which autograd calls right before the operator's own backward, every time: then
exactly these rows change. A batch that was looked up early, by a pipelined trainer, is seen when its turn comes, be
there a save in between; one that was only looked at is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from holdfast.checkpoint.training.divided import SeeRows
from holdfast.checkpoint.training.tables import Table


class LookupWatch:
    """The lookups of one operator."""

    def __init__(self, operator: Any, tables: Sequence[Table]) -> None:
        self._operator = operator
        self._tables = tuple(tables)  # in the operator's order
        self._of_feature = [int(number) for number in operator.feature_table_map]

    def install(self, see: SeeRows) -> RemovableHandle:
        """Begin to look."""
        hook = torch.compiler.disable(partial(self._looked_up, see))
        handle: RemovableHandle = self._operator.register_forward_hook(hook, with_kwargs=True)
        return handle

    def _looked_up(self, see: SeeRows, operator: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                given = dict(zip(("indices", "offsets", "", "", "batch_size_per_feature_per_rank"), args, strict=False))
                tensor.register_hook(partial(self._goes_back, see, given | kwargs))

    def _goes_back(self, see: SeeRows, lookup: dict[str, Any], gradient: Tensor) -> None:
        """The rows of a lookup are about to be updated."""
        indices, bounds = lookup["indices"], self._bounds(lookup)
        for feature, number in enumerate(self._of_feature):
            table = self._tables[number]
            ids = indices[bounds[feature] : bounds[feature + 1]]
            if len(ids) and table.rows:
                see(table.name, _within(ids, table.rows))

    def _bounds(self, lookup: dict[str, Any]) -> list[int]:
        """Where the indices of each feature begin, and where the last one's end."""
        offsets, features = lookup["offsets"], len(self._of_feature)
        sizes = lookup.get("batch_size_per_feature_per_rank")
        if sizes is None:
            batch = (len(offsets) - 1) // features
            places = [batch * number for number in range(features + 1)]
        else:
            places = [0]
            for each in sizes:
                places.append(places[-1] + sum(each))
        found: list[int] = offsets[torch.tensor(places, device=offsets.device)].tolist()
        return found


def _within(ids: Tensor, rows: int) -> Tensor:
    """The rows that the operator looks up: it takes row 0 where an index is none of the table's."""
    ids = ids.to(torch.int64)
    outside = (ids < 0) | (ids >= rows)
    return torch.where(outside, torch.zeros_like(ids), ids) if bool(outside.any()) else ids
