"""The row ids of a chunk, encoded and decoded.

Either as differences from the chunk's first id (``U32``, ``U64``), in any order; or, if sorted, each as the distance
from the previous one (``G8``, ``G16``), for quantized records so short that four bytes per id would matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.format.dtypes import itemsize

ID_TYPES = {"U32": "<u4", "U64": "<u8", "G8": "<u1", "G16": "<u2"}
_MEMBERS = {"G8": "U8", "G16": "U16"}  # what safetensors readers are told of gaps
GAP_TYPES = frozenset(_MEMBERS)


def member_dtype(ids: str) -> str:
    """The type of the column of ids as a plain tensor."""
    return _MEMBERS.get(ids, ids)


def id_bytes(ids: str | None) -> int:
    """Bytes of a stored id; none in a contiguous chunk."""
    return itemsize(member_dtype(ids)) if ids is not None else 0


def chunk_ids(rows: int, first: int, ids: str | None, data: memoryview) -> NDArray[np.int64]:
    """The ids of a chunk that begins with ``data``; of a contiguous one (``ids`` None) no byte is needed."""
    if ids is None:
        return np.arange(first, first + rows)
    stored = np.frombuffer(data[: rows * id_bytes(ids)], dtype=ID_TYPES[ids])
    if ids in _MEMBERS:
        return np.cumsum(stored, dtype=np.int64) + first
    return stored.astype(np.int64) + first


def check_ids(ids: NDArray[np.int64], first: int, last: int, segments: Sequence[int] = ()) -> str | None:
    """What is wrong with the ids of a whole chunk; ``segments`` are the rows of each of its segments.

    They ascend, in each segment, and go from the first row to the last.
    """
    ascends = ids[1:] > ids[:-1]
    starts = np.cumsum(segments, dtype=np.int64)[:-1]
    ascends[starts - 1] = True
    if not ascends.all():
        return f"row {int(ids[1:][~ascends][0])} is not above the one before it"
    low, high = (ids.min(), ids.max()) if len(starts) else (ids[0], ids[-1])
    if low != first or high != last:
        return f"its rows are {int(low)} to {int(high)}, not {first} to {last}"
    if len(starts) and len(np.unique(ids)) != len(ids):
        return "it holds a row twice"
    return None


def pack_ids(ids: NDArray[np.int64], *, in_order: bool) -> tuple[str, NDArray[np.uint8]]:
    """The shortest way to store ids, and their bytes; only those ``in_order`` can be stored as gaps."""
    if in_order:
        gaps = np.diff(ids, prepend=ids[:1])
        for kind in _MEMBERS:
            if int(gaps.max(initial=0)) <= np.iinfo(ID_TYPES[kind]).max:
                return kind, gaps.astype(ID_TYPES[kind]).view(np.uint8)
    offsets = ids - ids.min(initial=ids[0] if len(ids) else 0)
    kind = "U32" if int(offsets.max(initial=0)) < 2**32 else "U64"
    return kind, offsets.astype(ID_TYPES[kind]).view(np.uint8)
