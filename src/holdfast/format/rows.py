"""The row ids of a chunk, as they are stored and as they are meant."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.format.dtypes import itemsize

ID_TYPES = {"U32": "<u4", "U64": "<u8"}


def chunk_ids(rows: int, first: int, ids: str | None, data: memoryview) -> NDArray[np.int64]:
    """The ids of a chunk that begins with ``data``; of a contiguous one (``ids`` None) no byte is needed."""
    if ids is None:
        return np.arange(first, first + rows)
    stored = np.frombuffer(data[: rows * itemsize(ids)], dtype=ID_TYPES[ids])
    return stored.astype(np.int64) + first
