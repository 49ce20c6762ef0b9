"""Sets of rows as NumPy arrays. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.track.row_sets import Marks
from holdfast.kernels.bit_sets import arrays as sets

Array = NDArray[Any]


class ArraySets:
    """See ``SetKind``."""

    __slots__ = ()

    def new_set(self, rows: int, /) -> Array:
        """An empty set."""
        return sets.new_set(rows)

    def marker(self, bits: Array, rows: int, /) -> Callable[[Array], None]:
        """Adds ids to a set."""
        return sets.marker(bits, rows)

    def mark_nonzero_rows(self, bits: Array, values: Array, /) -> None:
        """Add rows that have a bit set."""
        patterns = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
        sets.host_kernels().mark_nonzero_rows(bits, patterns)

    def merge(self, into: Array, other: Array, /) -> None:
        """Add the rows of another set."""
        sets.merge(into, other)

    def clear(self, bits: Array, /) -> None:
        """Remove every row."""
        sets.clear(bits)

    def cut(self, bits: Array, start: int, stop: int, /) -> Array:
        """Some bytes of a set."""
        return bits[start:stop].copy()

    def list_ids(self, bits: Array, start: int, stop: int, /, *, offset: int = 0) -> Array:
        """The rows of a range."""
        ids = sets.list_ids(bits, start, stop)
        ids += offset
        return ids

    def count(self, bits: Array, start: int, stop: int, /) -> int:
        """How many these are."""
        return sets.count(bits, start, stop)

    def ids(self, start: int, stop: int, /) -> Array:
        """All ids of a range."""
        return np.arange(start, stop, dtype=np.int64)

    def size(self, ids: Array, /) -> int:
        """How many ids these are."""
        return ids.size

    def bound(self, rows: int, /) -> None:
        """Counting waits for nobody."""


def array_marks(rows: int) -> Marks[Array]:
    """The marks of an array with so many rows."""
    return Marks(rows, ArraySets())
