"""Copies packed rows to their places, in Numba: one thread, without the GIL. Importing this compiles it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled

Ids = NDArray[np.int64]


@compiled(["void(uint64[:, ::1], uint64[:, ::1], int64[::1])"])
def scatter_words(target: NDArray[np.uint64], rows: NDArray[np.uint64], ids: Ids) -> None:
    """Copy ``rows[i]`` to row ``ids[i]`` of the target. Ids are not checked."""
    for position in range(ids.shape[0]):
        row = ids[position]
        for column in range(rows.shape[1]):
            target[row, column] = rows[position, column]


@compiled(["void(uint64[:, ::1], uint64[:, ::1], int64[::1], boolean[::1])"])
def scatter_chosen_words(
    target: NDArray[np.uint64], rows: NDArray[np.uint64], ids: Ids, chosen: NDArray[np.bool_]
) -> None:
    """``scatter_words`` for the rows that are chosen."""
    for position in range(ids.shape[0]):
        if chosen[position]:
            row = ids[position]
            for column in range(rows.shape[1]):
                target[row, column] = rows[position, column]
