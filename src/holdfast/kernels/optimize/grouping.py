"""Which positions of a push belong to which row, in Numba: without the GIL. Importing this module compiles it."""

from __future__ import annotations

import numpy as np
from numba.core import types  # type: ignore[import-untyped, unused-ignore]

from holdfast.kernels.compiled import compiled
from holdfast.kernels.optimize.reference import ASCENDING, UNORDERED, Groups, Ids

_DIGIT = 11  # bits that one pass of the sort looks at: two passes for shards of up to four million rows
_BUCKETS = 1 << _DIGIT

_INT, _WRITTEN = types.int64, types.Array(types.int64, 1, "C")
_IDS = types.Array(types.int64, 1, "C", readonly=True)  # or writable
_TWO_WRITTEN = types.UniTuple(_WRITTEN, 2)  # type: ignore[no-untyped-call, unused-ignore]


@compiled([_INT(_IDS, _INT)])
def find_outside(ids: Ids, rows: int) -> int:
    """The position of the first id outside ``[0, rows)``; else whether the ids ascend, each once."""
    before, ascending = -1, True
    for position in range(ids.shape[0]):
        row = ids[position]
        if row < 0 or row >= rows:
            return position
        ascending &= row > before
        before = row
    return ASCENDING if ascending else UNORDERED


@compiled([types.void(_WRITTEN, _WRITTEN, _WRITTEN, _WRITTEN, _INT)])
def _sort_by_digit(ids: Ids, order: Ids, sorted_ids: Ids, sorted_order: Ids, shift: int) -> None:
    """One pass of a radix sort: by some bits of the id, equal ones in the order in which they stand."""
    places = np.zeros(_BUCKETS + 1, np.int64)
    for position in range(ids.shape[0]):
        places[((ids[position] >> shift) & (_BUCKETS - 1)) + 1] += 1
    for bucket in range(_BUCKETS):
        places[bucket + 1] += places[bucket]
    for position in range(ids.shape[0]):
        bucket = (ids[position] >> shift) & (_BUCKETS - 1)
        place = places[bucket]
        places[bucket] = place + 1
        sorted_ids[place], sorted_order[place] = ids[position], order[position]


@compiled([_TWO_WRITTEN(_IDS, _INT)])
def _sort(ids: Ids, rows: int) -> tuple[Ids, Ids]:
    """The ids in ascending order, and where each stood; equal ids in the order in which they stood."""
    now, order = ids.copy(), np.arange(ids.shape[0])
    then, other_order = np.empty_like(now), np.empty_like(order)
    shift = 0
    while (rows - 1) >> shift > 0:
        _sort_by_digit(now, order, then, other_order, shift)
        now, then, order, other_order = then, now, other_order, order
        shift += _DIGIT
    return now, order


@compiled([_INT(_WRITTEN, _WRITTEN, _WRITTEN)])
def _divide(sorted_ids: Ids, rows: Ids, starts: Ids) -> int:
    """Write down where each id begins, and the end; how many there are."""
    count = 0
    for position in range(sorted_ids.shape[0]):
        if position == 0 or sorted_ids[position] != sorted_ids[position - 1]:
            rows[count], starts[count] = sorted_ids[position], position
            count += 1
    starts[count] = sorted_ids.shape[0]
    return count


def group(ids: Ids, rows: int) -> Groups:
    """Group the positions of ids, all of them in ``[0, rows)``."""
    sorted_ids, order = _sort(ids, rows)
    found, starts = np.empty(len(ids), np.int64), np.empty(len(ids) + 1, np.int64)
    count = _divide(sorted_ids, found, starts)
    return Groups(rows=found[:count], starts=starts[: count + 1], order=order)
