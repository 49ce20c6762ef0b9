"""Row records in Numba: without the GIL. Importing this module compiles it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]
from numpy.typing import NDArray

from holdfast.kernels.compiled import compiled
from holdfast.kernels.memory import LINE_BYTES, finish_streaming, prefetch_line, stream_line
from holdfast.kernels.records.reference import Columns, Ids, Words
from holdfast.kernels.runs import Runs

_AHEAD = 8  # rows between a row's prefetch and its copy
_STREAMED_BYTES = 1 << 18  # what is smaller is still in a cache when somebody reads it

_INT = types.int64
_IDS = types.Array(types.int64, 1, "C", readonly=True)  # or writable
_COLUMN, _RECORDS = types.Array(types.uint32, 2, "C"), types.Array(types.uint32, 2, "C", readonly=True)


@compiled([types.void(_INT, _INT, _IDS, _INT)])
def _fetch_ahead(address: int, width: int, rows: Ids, number: int) -> None:
    """Ask for a row that is used soon."""
    ahead = address + rows[min(number + _AHEAD, rows.shape[0] - 1)] * width
    for offset in range(0, width, LINE_BYTES):
        prefetch_line(ahead + offset)


@compiled([types.void(_COLUMN, _IDS, types.uint64, _COLUMN)])
def _gather(column: Words, rows: Ids, at: np.uint64, records: Words) -> None:
    for number in range(rows.shape[0]):
        _fetch_ahead(column.ctypes.data, column.shape[1] * 4, rows, number)
        row = max(rows[number], 0)  # here and below: no index counts from the end
        for i in range(column.shape[1]):
            records[number, at + np.uint64(i)] = column[row, i]


@compiled([types.void(_COLUMN, _IDS, types.uint64, _RECORDS)])
def _put(column: Words, rows: Ids, at: np.uint64, records: Words) -> None:
    for number in range(rows.shape[0]):
        _fetch_ahead(column.ctypes.data, column.shape[1] * 4, rows, number)
        row = max(rows[number], 0)
        for i in range(column.shape[1]):
            column[row, i] = records[number, at + np.uint64(i)]


@compiled([types.void(_COLUMN, _IDS, _IDS, types.uint64, _COLUMN)])
def _gather_runs(column: Words, starts: Ids, counts: Ids, at: np.uint64, records: Words) -> None:
    number = 0
    for run in range(starts.shape[0]):
        for row in range(starts[run], starts[run] + counts[run]):
            source, target = column[row], records[number]
            for i in range(column.shape[1]):
                target[at + np.uint64(i)] = source[i]
            number += 1


@compiled([types.void(_COLUMN, _IDS, _IDS, types.uint64, _RECORDS)])
def _put_runs(column: Words, starts: Ids, counts: Ids, at: np.uint64, records: Words) -> None:
    number = 0
    for run in range(starts.shape[0]):
        for row in range(starts[run], starts[run] + counts[run]):
            source, target = records[number], column[row]
            for i in range(column.shape[1]):
                target[i] = source[at + np.uint64(i)]
            number += 1


@compiled([types.void(types.Array(types.int64, 2, "C"), _IDS, _IDS, _INT, _INT, types.boolean)])
def _stream_runs(columns: NDArray[np.int64], starts: Ids, counts: Ids, records: int, width: int, gathers: bool) -> None:
    """Row by row, between columns (address, bytes of a row) and records, past the caches: all are whole lines."""
    for run in range(starts.shape[0]):
        for row in range(starts[run], starts[run] + counts[run]):
            record = records
            for column in range(columns.shape[0]):
                size = columns[column, 1]
                at = columns[column, 0] + row * size
                for offset in range(0, size, LINE_BYTES):
                    if gathers:
                        stream_line(record + offset, at + offset)
                    else:
                        stream_line(at + offset, record + offset)
                record += size
            records += width
    finish_streaming(records)


def gather(columns: Columns, rows: Ids, records: Words) -> None:
    """Copy the rows' columns, one after another, into records."""
    at = 0
    for column in columns:
        if column.shape[1]:
            _gather(column, rows, np.uint64(at), records)
        at += column.shape[1]


def put(columns: Columns, rows: Ids, records: Words) -> None:
    """Copy records into the rows' columns. Of a row that stands there twice, the last record stays."""
    at = 0
    for column in columns:
        if column.shape[1]:
            _put(column, rows, np.uint64(at), records)
        at += column.shape[1]


def gather_runs(columns: Columns, runs: Runs, records: Words) -> None:
    """Copy the columns of the rows of some runs into records."""
    if _streamed(columns, runs, records, [records], gathers=True):
        return
    at = 0
    for column in columns:
        if column.shape[1]:
            _gather_runs(column, runs.starts, runs.counts, np.uint64(at), records)
        at += column.shape[1]


def put_runs(columns: Columns, runs: Runs, records: Words) -> None:
    """Copy records into the columns of the rows of some runs."""
    if _streamed(columns, runs, records, columns, gathers=False):
        return
    at = 0
    for column in columns:
        if column.shape[1]:
            _put_runs(column, runs.starts, runs.counts, np.uint64(at), records)
        at += column.shape[1]


def _streamed(columns: Columns, runs: Runs, records: Words, targets: Sequence[Words], *, gathers: bool) -> bool:
    """Copy past the caches, where that pays and rows are whole lines; whether they were copied.

    A store to memory that is in no cache fetches it first. Large blocks are in none: their memory was last used many
    blocks ago, and whoever reads them next is another core.
    """
    used = [column for column in columns if column.shape[1]]
    is_whole_lines = all(column.shape[1] * column.itemsize % LINE_BYTES == 0 for column in used)
    is_on_lines = all(target.ctypes.data % LINE_BYTES == 0 for target in targets if target.size)
    if records.nbytes < _STREAMED_BYTES or not (is_whole_lines and is_on_lines):
        return False
    places = np.array([(column.ctypes.data, column.shape[1] * column.itemsize) for column in used])
    _stream_runs(places, runs.starts, runs.counts, records.ctypes.data, records.shape[1] * 4, gathers)
    return True
