"""Restores rows into live tensors: of whole tables, or of ranges of their rows and values.

Converts type and device where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.columns import Ids
from holdfast.checkpoint.restore.rows import RowsSeen, WantedRows, write_rows
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.codec.base import Rows
from holdfast.format.dtypes import torch_dtype
from holdfast.kernels.row_scatter import RowScatter, Words

Targets = dict[str, Tensor]  # by column name: where a table's rows go


def restore_rows(
    fetcher: Fetcher,
    plans: Iterable[tuple[TablePlan, Targets]],
    *,
    seen: RowsSeen | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> None:
    """Write every planned row into its targets, each as large as its table."""
    wanted = [WantedRows(plan=plan, columns=_writers(plan, targets)) for plan, targets in plans]
    write_rows(fetcher, wanted, seen=seen, progress=progress, workers=workers)


def _writers(plan: TablePlan, targets: Targets) -> dict[str, ColumnWriter]:
    return {
        column.name: ColumnWriter(targets[column.name], column.dtype, column.row_shape)
        for column in plan.spec.columns
        if column.name in targets
    }


class ColumnWriter:
    """Writes rows into a column of a table, or of its rows from ``first`` on, by range or by id.

    With ``values`` the target holds only these of a stored row's values.
    """

    def __init__(
        self,
        target: Tensor,
        dtype: str,
        row_shape: tuple[int, ...],
        *,
        first: int = 0,
        values: slice | None = None,
        is_part: bool = False,
    ) -> None:
        self._target = target
        self._dtype = dtype
        self._row_shape = row_shape
        self._first = first
        self._values = values
        self._is_part = is_part  # rows may come that the target has no place for
        self._as_stored = target.dtype == torch_dtype(dtype) and values is None
        self._scatter = _scatter_into(target, first) if self._as_stored else None

    @property
    def scatter(self) -> RowScatter | None:
        """Writes rows without the GIL."""
        return self._scatter

    def write(self, data: memoryview, rows: int, first: int, ids: Ids | None, chosen: NDArray[np.bool_] | None) -> None:
        """Rows ``first ..`` or rows ``ids``, of these the chosen ones."""
        if ids is not None and self._is_part:
            inside = self._inside(ids)
            chosen = inside if chosen is None else chosen & inside
        if ids is not None and self._scatter is not None and len(data):
            self._scatter(data, ids, chosen)
            return
        tensor = as_tensor(data, self._dtype, (rows, *self._row_shape))
        if self._values is not None:
            tensor = tensor[:, self._values]
        if ids is None:
            low, high = max(first, self._first), min(first + rows, self._first + len(self._target))
            if low < high:
                self._target[low - self._first : high - self._first].copy_(tensor[low - first : high - first])
            return
        where = torch.from_numpy(ids) - self._first
        if chosen is not None:
            mask = torch.from_numpy(chosen)
            tensor, where = tensor[mask], where[mask]
        tensor = tensor.to(device=self._target.device, dtype=self._target.dtype)
        self._target.index_copy_(0, where.to(self._target.device), tensor)

    def held(self, ids: Ids) -> Rows | None:
        """What it holds now of these rows."""
        if not self._as_stored:
            return None
        places = ids - self._first
        if self._is_part:
            places = np.where(self._inside(ids), places, 0)
        found = self._target.index_select(0, torch.from_numpy(places).to(self._target.device)).cpu()
        found = found.reshape(len(ids), -1)
        return found.view(torch.int16).numpy().view(np.uint16) if found.dtype == torch.bfloat16 else found.numpy()

    def _inside(self, ids: Ids) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (ids >= self._first) & (ids < self._first + len(self._target))
        return found


def _scatter_into(target: Tensor, first: int) -> RowScatter | None:
    if not target.is_cpu or not target.is_contiguous() or not target.numel():
        return None
    rows = len(target)
    return RowScatter.at(target.data_ptr(), rows, target.nbytes // rows, lambda: _words_of(target), first)


def _words_of(target: Tensor) -> Words:
    return target.detach().view(len(target), -1).view(torch.uint8).numpy().view(np.uint64)
