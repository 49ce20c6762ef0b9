"""Checks that an optimizer is row-local as declared: compares a few rows without a gradient before and after a step."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.checkpoint.training.tables import Table

_ROWS = 64


class Witness:
    """Rows of a table that a row-local step must leave alone, as they were before it."""

    def __init__(self, table: Table, gradient: Tensor, number: int) -> None:
        self._table = table
        self._ids = _without_gradient(table, gradient, number)
        self._before = self._rows()

    def is_broken(self) -> bool:
        """Whether one of the rows changed. Waits for the device."""
        now = self._rows()
        return any(not torch.equal(before, now[name]) for name, before in self._before.items() if name in now)

    def _rows(self) -> dict[str, Tensor]:
        columns = {"": self._table.parameter.detach(), **self._table.slots()}
        return {name: _bits(column.detach().index_select(0, self._ids)) for name, column in columns.items()}


def _without_gradient(table: Table, gradient: Tensor, number: int) -> Tensor:
    # A generator of its own: what is drawn here must not change the training.
    draw = torch.Generator().manual_seed(number)
    ids = torch.randint(table.rows, (_ROWS,), generator=draw).unique().to(gradient.device)
    if gradient.is_sparse:
        moves = torch.isin(ids, gradient._indices()[0])
    else:
        moves = _bits(gradient.index_select(0, ids)).any(dim=1)
    return torch.masked_select(ids, moves.logical_not())


def _bits(rows: Tensor) -> Tensor:
    return rows.reshape(rows.shape[0], -1).contiguous().view(torch.uint8)
