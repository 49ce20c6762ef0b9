from __future__ import annotations

import numpy as np

from holdfast.checkpoint.grid.split import known_labels, split
from holdfast.format.layout import chunk_bytes, chunk_columns
from holdfast.format.manifest import Place, RowsChunk, Segment
from holdfast.format.rows import chunk_ids
from holdfast.types import ColumnSpec


def test_rows_that_live_again_after_going_back_are_in_the_order_of_their_ids() -> None:
    """Two checkpoints of a timeline that was left had replaced rows 5, 6 and rows 1, 2."""
    columns = [ColumnSpec(name="weight", dtype="F32", row_shape=(1,))]
    ids = np.array([5, 6, 1, 2])
    placed = chunk_columns(columns, 4, "U32")
    data = np.zeros(chunk_bytes(placed), np.uint8)
    data[:16] = (ids - 1).astype("<u4").view(np.uint8)
    chunk = RowsChunk(
        place=Place(bundle=0, offset=0, length=len(data), block=0),
        rows=4,
        first=1,
        last=6,
        ids="U32",
        segments=(Segment(replaced=1, rows=2), Segment(replaced=0, rows=2)),
        through=2,
    )
    alive, dead = split(columns, chunk, memoryview(data), ids, known_labels(chunk, replacing=0))
    assert alive is not None and dead is None
    assert chunk_ids(alive.rows, alive.first, alive.ids, memoryview(alive.data)).tolist() == [1, 2, 5, 6]
