"""Where each column of a chunk is: pure arithmetic shared by writer, reader and specification.

A rows chunk is ``[ids] weight slot slot ...``, column by column, each padded to ALIGNMENT bytes. Ids are stored as
differences from the chunk's first id, in 32 bits if they fit. A chunk without ids holds the contiguous rows ``first ..
last``. Where rows are quantized, records take the place of their columns (codec/chunk.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.errors import ConfigurationError
from holdfast.format.dtypes import itemsize
from holdfast.format.rows import id_bytes, member_dtype
from holdfast.types import ColumnSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Length = TypeVar("Length", int, "NDArray[np.int64]")
ALIGNMENT = 8
IDS = "ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column's place in a chunk; ``offset`` counts from the chunk's first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    per_row: bool = True  # whether its first entries belong to the first rows; escapes come as they are needed

    @property
    def length(self) -> int:
        """Its bytes without padding."""
        return math.prod(self.shape) * itemsize(self.dtype)


def padded(length: Length) -> Length:
    """``length``, or each of several, rounded up to the alignment of columns."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def ids_dtype(first: int, last: int) -> str:
    """The stored type of a chunk's ids."""
    return "U32" if last - first < 2**32 else "U64"


def row_bytes(columns: Sequence[ColumnSpec]) -> int:
    """Bytes of one row record, without id and padding."""
    return sum(math.prod(column.row_shape) * itemsize(column.dtype) for column in columns)


@lru_cache(maxsize=4096)
def chunk_columns(columns: tuple[ColumnSpec, ...], rows: int, ids: str | None) -> tuple[Column, ...]:
    """The columns of a chunk of ``rows`` row records; ``ids`` is the ids' dtype, None for a contiguous chunk."""
    if any(column.name == IDS for column in columns):
        raise ConfigurationError(f"a column cannot be called {IDS!r}: chunks keep their row ids under that name")
    shapes = [] if ids is None else [ids_shape(rows, ids)]
    shapes += [Shape(column.name, column.dtype, (rows, *column.row_shape)) for column in columns]
    return in_places(shapes)


class Shape(NamedTuple):
    """A column that has no place yet."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    per_row: bool = True


def ids_shape(rows: int, ids: str) -> Shape:
    """The column of a chunk's ids; it comes first."""
    return Shape(IDS, member_dtype(ids), (rows,))


def in_places(shapes: Iterable[Shape]) -> tuple[Column, ...]:
    """These columns, one after another."""
    placed: list[Column] = []
    offset = 0
    for name, dtype, shape, per_row in shapes:
        column = Column(name=name, dtype=dtype, shape=shape, offset=offset, per_row=per_row)
        placed.append(column)
        offset += padded(column.length)
    return tuple(placed)


def chunk_bytes(columns: Sequence[Column]) -> int:
    """Bytes a chunk takes, padding included."""
    return columns[-1].offset + padded(columns[-1].length) if columns else 0


def rows_that_fit(columns: Sequence[ColumnSpec], room: int, ids: str | None) -> int:
    """How many row records fit into ``room`` bytes."""
    per_row = row_bytes(columns) + id_bytes(ids)
    slack = ALIGNMENT * (len(columns) + (1 if ids else 0))
    return max(0, (room - slack) // per_row) if per_row else max(0, room)
