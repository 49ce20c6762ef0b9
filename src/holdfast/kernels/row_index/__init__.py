"""Rows that come again and again: where each stands among those of its slice, in the order in which they first came.

Numba and NumPy give the same. No torch: servers run without it.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol, cast

from holdfast.kernels.row_index.reference import Entered, Ids

__all__ = ["Entered", "RowIndex", "row_index", "warm_up"]


class RowIndex(Protocol):
    """Rows that have come since it was cleared.

    Attributes:
        counts: How many, by slice.
    """

    counts: Ids

    def enter(self, rows: Ids, slices: Ids) -> Entered:
        """Rows, each once and ascending, and the slice of each."""
        ...

    def clear(self) -> None:
        """No row has come."""
        ...


def row_index(slices: int) -> RowIndex:
    """One that is empty.

    Args:
        slices: How many there are.
    """
    return _kind()(slices)


def warm_up() -> None:
    """Compile or load now what an index needs, so that no message waits for it."""
    _kind()


class _Kind(Protocol):
    def __call__(self, slices: int, /) -> RowIndex: ...


@cache
def _kind() -> _Kind:
    try:
        from holdfast.kernels.row_index import cpu
    except ImportError:  # no Numba, or one that does not fit this NumPy
        from holdfast.kernels.row_index import reference

        return cast(_Kind, reference.RowIndex)
    return cast(_Kind, cpu.RowIndex)
