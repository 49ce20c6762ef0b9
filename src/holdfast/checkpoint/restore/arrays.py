"""Restores rows into NumPy arrays that hold a range of a table. No torch here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.restore.columns import Ids
from holdfast.codec.base import Rows
from holdfast.kernels.row_scatter import RowScatter


class ArrayColumn:
    """One column of a range of a table, which begins with row ``first``: stored as the array has it, or refused."""

    def __init__(self, array: NDArray[Any], first: int) -> None:
        self._array = array
        self._first = first
        self._scatter = RowScatter.into(array, first)

    @property
    def scatter(self) -> RowScatter | None:
        """Writes rows without the GIL."""
        return self._scatter

    def write(self, data: memoryview, rows: int, first: int, ids: Ids | None, chosen: NDArray[np.bool_] | None) -> None:
        """Rows ``first ..`` or rows ``ids``, of these the chosen ones; those outside the range are left out."""
        if not len(data):
            return
        if ids is None:
            low, high = max(first, self._first), min(first + rows, self._first + len(self._array))
            if low < high:
                values = self._values(data, rows)
                self._array[low - self._first : high - self._first] = values[low - first : high - first]
            return
        inside = self._inside(ids)
        if chosen is not None:
            inside &= chosen
        if self._scatter is not None:
            self._scatter(data, ids, None if inside.all() else inside)
        else:
            self._array[ids[inside] - self._first] = self._values(data, rows)[inside]

    def held(self, ids: Ids) -> Rows | None:
        """What it holds now of these rows; zeros for those outside the range."""
        found = np.zeros((len(ids), *self._array.shape[1:]), dtype=self._array.dtype)
        inside = self._inside(ids)
        found[inside] = self._array[ids[inside] - self._first]
        return found.reshape(len(ids), math.prod(self._array.shape[1:]))

    def _inside(self, ids: Ids) -> NDArray[np.bool_]:
        return (ids >= self._first) & (ids < self._first + len(self._array))

    def _values(self, data: memoryview, rows: int) -> NDArray[Any]:
        return np.frombuffer(data, dtype=self._array.dtype).reshape(rows, *self._array.shape[1:])
