"""Reads adjacent chunks of a bundle with one request, because many small requests dominate the time.

For stores without files; stores with files have their own path (``native_rows``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.restore.columns import wanted_ranges
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.manifest import BundleRef

_GAP_BYTES = BLOCK_BYTES  # between two chunks: reading on takes less time than another request
_SPAN_BYTES = 2 * 2**20  # at most: threads share the spans, and each holds one in memory


class ReadSpan(NamedTuple):
    """Bytes ``start .. stop`` of a bundle, and the reads within them, by their numbers in a list."""

    bundle: BundleRef
    start: int
    stop: int
    members: list[int]


def spans_of(reads: Sequence[Read], names: Sequence[Collection[str]]) -> list[ReadSpan]:
    """Spans for what is wanted of each read: the columns ``names``, in whole blocks."""
    extents = [_extent(read, wanted) for read, wanted in zip(reads, names, strict=True)]
    spans: list[ReadSpan] = []
    for number in sorted(range(len(reads)), key=lambda each: (reads[each].bundle.name, extents[each])):
        bundle, (start, stop) = reads[number].bundle, extents[number]
        last = spans[-1] if spans else None
        near = last is not None and last.bundle == bundle and start - last.stop <= _GAP_BYTES
        if last is not None and near and max(stop, last.stop) - last.start <= _SPAN_BYTES:
            spans[-1] = last._replace(stop=max(stop, last.stop))
            last.members.append(number)
        else:
            spans.append(ReadSpan(bundle, start, stop, [number]))
    return spans


def _extent(read: Read, names: Collection[str]) -> tuple[int, int]:
    """Where the wanted bytes begin and end in the bundle."""
    place, ranges = read.chunk.place, wanted_ranges(read, names)
    if not ranges:
        return place.offset, place.offset
    start, stop = ranges[0][0] // BLOCK_BYTES * BLOCK_BYTES, -(-ranges[-1][1] // BLOCK_BYTES) * BLOCK_BYTES
    return place.offset + start, place.offset + min(stop, place.length)
