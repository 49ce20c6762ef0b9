"""Copies packed rows to their places in an array: on one thread, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]  # a row each


class RowScatter:
    """For threads of the caller's own; ``into`` gives None where the array is not of the kind, or without Numba.

    Ids count from ``origin``, the row of a table that the array begins with.
    """

    def __init__(
        self, words: Callable[[], Words], kernels: ModuleType, *, rows: int, width: int, address: int, origin: int
    ) -> None:
        self._make_words = words  # made when they are used: kernels without the GIL take the address alone
        self._kernels = kernels
        self._rows = rows
        self._origin = origin
        self.width = width  # bytes of a row
        self.address = address - origin * width  # where the table's row 0 would be

    @classmethod
    def into(cls, target: NDArray[Any], origin: int = 0) -> RowScatter | None:
        """For arrays without gaps whose rows are whole 64-bit words."""
        if not target.size or not target.flags.c_contiguous:
            return None
        address: int = target.__array_interface__["data"][0]
        width = target.nbytes // len(target)
        return cls.at(address, len(target), width, lambda: target.reshape(len(target), -1).view(np.uint64), origin)

    @classmethod
    def at(cls, address: int, rows: int, width: int, words: Callable[[], Words], origin: int = 0) -> RowScatter | None:
        """For rows of so many bytes that lie one behind another at an address; ``words`` gives them as an array."""
        kernels = _kernels()
        if kernels is None or width % 8 or address % 8:
            return None
        return cls(words, kernels, rows=rows, width=width, address=address, origin=origin)

    @cached_property
    def _words(self) -> Words:
        return self._make_words()

    def __call__(self, rows: memoryview, ids: NDArray[np.int64], chosen: NDArray[np.bool_] | None = None) -> None:
        """Copy the ``i``-th row to row ``ids[i]``, where ``chosen[i]``. Ids outside the array raise IndexError."""
        places = ids - self._origin if self._origin else ids
        wanted = places if chosen is None else places[chosen]
        if len(wanted) and (int(wanted.min()) < 0 or int(wanted.max()) >= self._rows):
            raise IndexError(f"rows {ids.min()} to {ids.max()} are not all in a table of {self._rows} rows")
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
