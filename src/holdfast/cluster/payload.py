"""What pulls, their answers and pushes carry, as tuples of arrays: the part of a message that the protocol never reads.

Rows are counted from the first of a server's array of their group: the server's number is cut off their keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.int64]
Arrays: TypeAlias = tuple[NDArray[Any], ...]

_NO_VALUES: Floats = np.empty(0, np.float32)
_WANTED, _NOT_WANTED = np.ones(1, np.uint8), np.zeros(1, np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRows:
    """Of a pull, to one server."""

    rows: Sequence[Numbers]  # for each group
    dense: bool  # its piece of the dense vector as well

    def to_arrays(self) -> Arrays:
        """For a message."""
        return (*self.rows, _WANTED if self.dense else _NOT_WANTED)

    @classmethod
    def from_arrays(cls, arrays: Arrays, groups: int) -> WantedRows:
        """As ``to_arrays`` made them; raises ValueError for anything else."""
        _require(len(arrays) == groups + 1, "a pull has an array for each group, and one more")
        *rows, dense = arrays
        _require(all(each.ndim == 1 and each.dtype == np.int64 for each in rows), "rows are numbers")
        _require(dense.shape == (1,), "the last array says whether the dense part is wanted")
        return cls(rows=rows, dense=bool(dense[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """The answer to a pull, of one server."""

    rows: Sequence[Floats]  # for each group ``[rows, width]``
    dense: Floats | None  # its piece of the dense vector

    def to_arrays(self) -> Arrays:
        """For a message."""
        return (*self.rows, _NO_VALUES if self.dense is None else self.dense)

    @classmethod
    def from_arrays(cls, arrays: Arrays, *, dense: bool) -> FoundRows:
        """As ``to_arrays`` made them."""
        *rows, last = arrays
        return cls(rows=rows, dense=last if dense else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Of a push, to one server."""

    rows: Sequence[Numbers]  # for each group, ascending, none twice
    values: Sequence[Floats]  # for each group ``[rows, width]``
    dense: Floats  # of its piece of the dense vector
    lr_tables: float
    lr_dense: float

    def to_arrays(self) -> Arrays:
        """For a message."""
        pairs = [each for pair in zip(self.rows, self.values, strict=True) for each in pair]
        return (*pairs, self.dense, np.array([self.lr_tables, self.lr_dense]).view(np.int64))

    @classmethod
    def from_arrays(cls, arrays: Arrays, groups: int) -> Gradients:
        """As ``to_arrays`` made them; raises ValueError for anything else."""
        _require(len(arrays) == 2 * groups + 2, "a push has two arrays for each group, and two more")
        *pairs, dense, rates = arrays
        _require(rates.shape == (2,) and rates.dtype == np.int64, "the last array holds two learning rates")
        lr_tables, lr_dense = rates.view(np.float64).tolist()
        return cls(rows=pairs[::2], values=pairs[1::2], dense=dense, lr_tables=lr_tables, lr_dense=lr_dense)


def in_order_of_workers(gradients: Mapping[int, Arrays], groups: int) -> list[Gradients]:
    """Of several workers' pushes for one step."""
    return [Gradients.from_arrays(gradients[worker], groups) for worker in sorted(gradients)]


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise ValueError(what)
