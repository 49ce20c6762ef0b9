"""How a chunk of rows is laid out in a frame: as in its table's tensors, except for columns already encoded.

``[ids] column column ... [escapes] [sample] ...``. A column of values is laid out as in memory. A *recorded* column
holds one record per row, as its codec makes them; values that no record can hold follow after all columns, and so does
an evenly spread sample of the original rows, from which the agent measures what the records lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.codec.chunk import escapes_name
from holdfast.format.layout import Column, Shape, chunk_columns, ids_shape, in_places, row_bytes
from holdfast.types import ColumnSpec

_MOST_SAMPLED, _LEAST_SAMPLED, _SAMPLED_SHARE = 256, 32, 64  # rows, and one row in so many


class Recorded(NamedTuple):
    """What a recorded column takes in a frame."""

    record_bytes: int
    escapes: int
    sample: int  # rows


def frame_columns(
    columns: Sequence[ColumnSpec], rows: int, ids: str | None, recorded: Mapping[str, Recorded]
) -> tuple[Column, ...]:
    """All columns of a chunk as it lies in a frame."""
    if not recorded:
        return chunk_columns(tuple(columns), rows, ids)
    shapes = [] if ids is None else [ids_shape(rows, ids)]
    for column in columns:
        if column.name in recorded:
            shapes.append(Shape(column.name, "U8", (rows, recorded[column.name].record_bytes)))
        else:
            shapes.append(Shape(column.name, column.dtype, (rows, *column.row_shape)))
    for column in columns:
        if found := recorded.get(column.name):
            width = row_bytes([column])
            shapes.append(Shape(escapes_name(column.name), "U8", (found.escapes, width)))
            shapes.append(Shape(sample_in_frame(column.name), "U8", (found.sample, width)))
    return in_places(shapes)


def sample_in_frame(column: str) -> str:
    """The name of some rows of a column as they were."""
    return f"{column}.sample"


def sample_rows(rows: int) -> int:
    """How many rows of a chunk its sample has."""
    return min(rows, _MOST_SAMPLED, max(_LEAST_SAMPLED, rows // _SAMPLED_SHARE))


def sample_positions(rows: int, sample: int) -> NDArray[np.int64]:
    """Which rows of a chunk its sample are."""
    return np.arange(sample, dtype=np.int64) * rows // max(1, sample)
