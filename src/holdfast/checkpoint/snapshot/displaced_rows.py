"""Rows of a table as they were before training moved them, for slices of a snapshot that have yet to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.checkpoint.snapshot.bound_layout import Area, aligned
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.kernels.row_patches import put_inside


class Arena:
    """A part of a device buffer that is used up piece by piece."""

    def __init__(self, buffer: Tensor, area: Area) -> None:
        self._buffer = buffer
        self._at = area.offset
        self._stop = area.offset + area.length

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return self._stop - self._at

    def has_room(self, sizes: Sequence[int]) -> bool:
        """Whether there is room for pieces of these sizes."""
        return sum(map(aligned, sizes)) <= self.left

    def take(self, rows: int, like: Tensor) -> Tensor:
        """Room for so many rows like those of a tensor."""
        size = rows * row_size(like)
        piece = self._buffer[self._at : self._at + size]
        self._at += aligned(size)
        return piece.view(like.dtype).view(rows, *like.shape[1:])


class _Moved(NamedTuple):
    """Rows that moved together: their numbers in the tensors, and what they were in each."""

    ids: Tensor
    columns: tuple[Tensor, ...]


class DisplacedRows:
    """Of one table. Rows may be among them that moved before, or that were read already: the oldest count."""

    def __init__(self, table: TableCopy, arena: Arena) -> None:
        self._tensors = tuple(tensor.detach() for tensor in table.tensors)
        self._arena = arena
        self._moved: list[_Moved] = []

    @property
    def are_none(self) -> bool:
        """Whether no row has moved."""
        return not self._moved

    def keep(self, ids: Tensor) -> bool:
        """Keep these rows as they are now, in whatever order, some maybe twice; False if there is no room for them."""
        count = len(ids)
        if not self._arena.has_room([8 * count, *(count * row_size(each) for each in self._tensors)]):
            return False
        if count:
            own = self._arena.take(count, ids.new_empty(1, dtype=torch.int64)).copy_(ids)
            kept = tuple(torch.index_select(each, 0, own, out=self._arena.take(count, each)) for each in self._tensors)
            self._moved.append(_Moved(own, kept))
        return True

    def put_back(self, columns: Sequence[Tensor], first: int) -> None:
        """Make a copy of a piece of the table, from row ``first`` on, what it was before anything moved."""
        for moved in reversed(self._moved):  # what a row was first is written last
            for column, values in zip(columns, moved.columns, strict=True):
                put_inside(column, values, moved.ids, first=first)


def row_size(tensor: Tensor) -> int:
    """The bytes of one of its rows."""
    return tensor.element_size() * tensor[:1].numel() if len(tensor) else 0
