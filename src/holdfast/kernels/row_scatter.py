"""Copies packed rows to their places in an array: on one thread, without the GIL."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RowScatter:
    """For threads of the caller's own; ``into`` gives None where the array is not of the kind, or without Numba.

    Ids count from ``origin``, the row of a table that the array begins with.
    """

    def __init__(self, words: NDArray[np.uint64], kernels: ModuleType, origin: int) -> None:
        self._words = words
        self._kernels = kernels
        self._origin = origin
        self.width = words.nbytes // len(words)  # bytes of a row
        self.address = words.ctypes.data - origin * self.width  # where the table's row 0 would be

    @classmethod
    def into(cls, target: NDArray[Any], origin: int = 0) -> RowScatter | None:
        """For arrays without gaps whose rows are whole 64-bit words."""
        kernels = _kernels()
        if kernels is None or not target.size or not target.flags.c_contiguous:
            return None
        if target.nbytes // len(target) % 8 or target.ctypes.data % 8:
            return None
        return cls(target.reshape(len(target), -1).view(np.uint64), kernels, origin)

    def __call__(self, rows: memoryview, ids: NDArray[np.int64], chosen: NDArray[np.bool_] | None = None) -> None:
        """Copy the ``i``-th row to row ``ids[i]``, where ``chosen[i]``. Ids outside the array raise IndexError."""
        places = ids - self._origin if self._origin else ids
        wanted = places if chosen is None else places[chosen]
        if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= len(self._words)):
            raise IndexError(f"rows {ids.min()} to {ids.max()} are not all in a table of {len(self._words)} rows")
        source = np.frombuffer(bytearray(rows) if rows.readonly else rows, dtype=np.uint64).reshape(len(ids), -1)
        if chosen is None:
            self._kernels.scatter_words(self._words, source, places)
        else:
            self._kernels.scatter_chosen_words(self._words, source, places, chosen)


def warm_up() -> None:
    """Compile or load now what copies rows."""
    _kernels()


@cache
def _kernels() -> ModuleType | None:
    try:
        from holdfast.kernels import scatter
    except ImportError:
        return None
    return scatter
