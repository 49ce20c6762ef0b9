"""Checks the row ids read from a chunk against its manifest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DamagedData
from holdfast.format.manifest import RowsChunk
from holdfast.format.rows import check_ids, chunk_ids

Ids = NDArray[np.int64]


def checked_ids(chunk: RowsChunk, data: memoryview, *, name: str) -> Ids:
    """The ids of a chunk, of which ``data`` is the beginning; those of a contiguous one need no byte."""
    ids = chunk_ids(chunk.rows, chunk.first, chunk.ids, data)
    if chunk.ids is not None and (wrong := check_ids(ids, chunk.first, chunk.last, [s.rows for s in chunk.segments])):
        raise DamagedData(name, f"has a chunk with wrong ids: {wrong}")
    return ids
