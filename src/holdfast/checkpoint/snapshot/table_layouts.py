"""Layouts of tables in device buffers, for bounds that grow in steps: most saves find the last layout good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.checkpoint.snapshot.bound_layout import BoundLayout, RecordWidth, rows_of_chunk
from holdfast.checkpoint.snapshot.gpu_records import Encodable
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.format.layout import ids_dtype
from holdfast.types import ColumnSpec

_LEAST_ESCAPES, _ESCAPES_SHARE = 1024, 256  # rows that no record holds: room for so many, and one in so many
_BOUND_STEPS = 32  # of a bound, up to the next power of two: rows that may be left over cost memory, but no time


class _Key(NamedTuple):
    """Everything that decides a layout."""

    columns: tuple[ColumnSpec, ...]
    records: Mapping[str, RecordWidth]
    rows: int  # of the table, that may be saved
    bound: int
    stop: int
    whole: bool
    at: int
    escapes: int


class TableLayouts:
    """The last layout of each table."""

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        self._last: dict[tuple[int, bool], tuple[_Key, BoundLayout | None]] = {}

    def of(self, copy: TableCopy, columns: Encodable, at: int, *, escapes: int = 0) -> BoundLayout | None:
        """Where its rows go, from ``at`` on; None if a row does not fit a frame, which the old way says better.

        ``escapes``: room for so many rows that no record holds, if that is more than usual.
        """
        key = _Key(
            columns=copy.columns,
            records={name: RecordWidth(own.record_bytes, own.sampled) for name, own in columns.items()},
            rows=copy.stop - copy.start,
            bound=_bound(copy),
            stop=copy.stop,
            whole=copy.ids is None and copy.unlisted is None,
            at=at,
            escapes=escapes,
        )
        last = self._last.get((copy.index, key.whole))
        if last is not None and last[0] == key:
            return last[1]
        layout = self._new(copy, key)
        self._last[copy.index, key.whole] = (key, layout)
        return layout

    def _new(self, copy: TableCopy, key: _Key) -> BoundLayout | None:
        ids = None if key.whole else ids_dtype(copy.start, copy.stop)
        rows = rows_of_chunk(key.columns, key.records, self._frame_bytes, ids)
        if not rows:
            return None
        return BoundLayout(
            columns=key.columns,
            records=key.records,
            bound=key.bound,
            chunk_rows=min(rows, key.bound) if key.bound else rows,
            ids=ids,
            escapes=min(key.bound, max(key.escapes, _LEAST_ESCAPES + key.bound // _ESCAPES_SHARE)),
            start=key.at,
        )


def _bound(copy: TableCopy) -> int:
    """No more rows than this; where nobody has counted them, a little more than that, so that it changes seldom."""
    most = copy.most_rows
    if copy.unlisted is None or not most:
        return most
    step = max(1, (1 << (most - 1).bit_length()) // (2 * _BOUND_STEPS))
    return min(copy.stop - copy.start, -(-most // step) * step)
