"""Row records in NumPy: what the faster kernels must equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.kernels.runs import Runs

Ids = NDArray[np.int64]
Words = NDArray[np.uint32]
Columns = tuple[Words, Words, Words, Words]  # a row's weights and up to three slots, ``[rows, words]``; empty ones last


def gather(columns: Columns, rows: Ids, records: Words) -> None:
    """Copy the rows' columns, one after another, into records."""
    at = 0
    for column in columns:
        records[:, at : at + column.shape[1]] = column[rows] if column.shape[1] else 0
        at += column.shape[1]


def put(columns: Columns, rows: Ids, records: Words) -> None:
    """Copy records into the rows' columns. Of a row that stands there twice, the last record stays."""
    at = 0
    for column in columns:
        if column.shape[1]:
            column[rows] = records[:, at : at + column.shape[1]]
        at += column.shape[1]


def gather_runs(columns: Columns, runs: Runs, records: Words) -> None:
    """Copy the columns of the rows of some runs into records."""
    gather(columns, runs.rows(), records)


def put_runs(columns: Columns, runs: Runs, records: Words) -> None:
    """Copy records into the columns of the rows of some runs."""
    put(columns, runs.rows(), records)
