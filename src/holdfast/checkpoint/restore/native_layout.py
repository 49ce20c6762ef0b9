"""The records that describe pieces to native restores, shared by kernels and their callers.

All fields are eight bytes: numbers, or addresses of what they point to.
"""

from __future__ import annotations

import numpy as np

PIECE = np.dtype(
    [
        ("path", "<i8"),  # address of the file's name, which ends with a zero
        ("offset", "<i8"),
        ("length", "<i8"),
        ("checksums", "<i8"),  # address of a CRC-32 for each block
        ("block_bytes", "<i8"),
        ("ids", "<i8"),  # offset of the ids in the bytes
        ("ids_width", "<i8"),  # 4 or 8
        ("first", "<i8"),  # what the ids count from
        ("rows", "<i8"),
        ("columns", "<i8"),  # address of its columns, each a COLUMN
        ("column_count", "<i8"),
        ("span", "<i8"),  # from the first row of the chunk to its last
        ("ids_count", "<i8"),  # of the whole chunk; of these the first ``rows`` are written
        ("segments", "<i8"),  # address of where each segment of the ids begins, the first at 0
        ("segment_count", "<i8"),
        ("newest", "<i8"),  # address of the newest generation of each row, or 0
        ("newest_width", "<i8"),  # 1, 2 or 4
        ("number", "<i8"),  # rows whose newest generation is a later one are left out
        ("low", "<i8"),  # the first row that is written,
        ("high", "<i8"),  # and the one after the last; others are left out
        ("ids_out", "<i8"),  # address for the rows' ids, eight bytes each, or 0
        ("marks", "<i8"),  # address of a byte for each row, which is 1 afterwards if the row was written; or 0
        ("outcome", "<i8"),
        ("written", "<i8"),  # how many rows were
    ]
)
"""Bytes of a file that begin with a block, what to do with them, and what came of it; lengths in bytes."""
COLUMN = np.dtype([("offset", "<i8"), ("width", "<i8"), ("target", "<i8")])
"""Where a column lies in a piece's bytes, its rows' bytes (a multiple of 8), and the address of row 0 where they go."""
