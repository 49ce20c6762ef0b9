"""Checks the numbers of chunks against each other and against what they refer to, for many at once.

Manifests and outlines describe chunks in two notations. Both bring their numbers here, in columns, before anything is
computed from them: what passes points into its bundle and into its share of the table, and holds each of its rows once.
What only the bytes can show (the ids themselves, checksums) is checked where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.layout import ALIGNMENT

if TYPE_CHECKING:
    from holdfast.format.fields import Numbers

_BLOCK_BITS = BLOCK_BYTES.bit_length() - 1  # it is a power of two, as is the alignment
_ALIVE = -1  # in a segment: replaced by none of the checkpoints that the manifest names


class BundleNumbers(NamedTuple):
    """Of each bundle its bytes, those of its head, and how many block checksums it can have."""

    size_bytes: Numbers
    head_bytes: Numbers
    blocks: Numbers


class ChunkNumbers(NamedTuple):
    """Chunks in columns, and what these point to; of each chunk whether it has no ids, or gaps in their place."""

    columns: Mapping[str, Numbers]  # share bundle offset length block rows first last through segments
    segments: Numbers  # [segments, 2]: replaced, rows
    shares: Numbers  # [shares, 4]: start, stop, whole, and by how many checkpoints its part is arranged
    contiguous: NDArray[np.bool_]
    gaps: NDArray[np.bool_]


def check_chunks(chunks: ChunkNumbers) -> None:
    """Raise ValueError, with the first field that is wrong, unless all is as it should be."""
    columns = chunks.columns
    _require(len({len(column) for column in columns.values()}) <= 1, "the columns of chunks are not of one length")
    for name, column in columns.items():
        if column.min(initial=0) < 0:
            raise ValueError(f"{name} of a chunk is negative")
    share = columns["share"]
    _require(share < len(chunks.shares), "a chunk names a share that is not there")
    _require(share[1:] >= share[:-1], "chunks do not come in the order of shares")
    own = _Own(*(column[share] for column in np.ascontiguousarray(chunks.shares.T)))
    _check_rows(columns, own, chunks.contiguous)
    _check_segments(columns, chunks.segments, own)
    ordered = chunks.contiguous | chunks.gaps
    _require((columns["segments"] == 0) | ~ordered, "a chunk that is arranged does not have its ids")
    _check_coverage(columns, own)
    held = np.zeros(len(chunks.shares), dtype=np.int64)
    np.add.at(held, share, columns["rows"])
    start, stop, whole, _ = chunks.shares.T
    _require((held == stop - start) | (whole == 0), "a whole share lacks rows")


class _Own(NamedTuple):
    """What is said of each chunk's share."""

    start: Numbers
    stop: Numbers
    whole: Numbers  # 0 or 1
    arranged: Numbers  # by so many checkpoints


def _check_rows(columns: Mapping[str, Numbers], own: _Own, contiguous: NDArray[np.bool_]) -> None:
    """Each chunk's rows lie in its share, and are as many as they can be."""
    first, last, rows = columns["first"], columns["last"], columns["rows"]
    _require(rows > 0, "a chunk has no rows")
    _require((own.start <= first) & (first <= last) & (last < own.stop), "a chunk's rows leave its share")
    most = last - first + 1
    _require(rows <= most, "a chunk has more rows than there are from its first to its last")
    _require((rows == most) | ~contiguous, "a contiguous chunk does not have all rows from its first to its last")
    _require(contiguous | (own.whole == 0), "a whole share has a chunk that is not contiguous")


def check_places(columns: Mapping[str, Numbers], bundles: BundleNumbers) -> None:
    """Each chunk lies behind the head of its bundle, and has its checksums; nothing belongs to two chunks."""
    bundle, offset, length, block = (columns[name] for name in ("bundle", "offset", "length", "block"))
    _require(bundle < len(bundles.blocks), "a chunk names a bundle that is not there")
    size, head, checksums = (each[bundle] for each in bundles)
    _require((offset | length) & (ALIGNMENT - 1) == 0, "a chunk is not aligned")
    _require((head <= offset) & (offset <= size) & (length <= size - offset), "a chunk leaves its bundle")
    blocks = (length + (BLOCK_BYTES - 1)) >> _BLOCK_BITS
    _require((block <= checksums) & (blocks <= checksums - block), "a chunk has no checksums in its bundle's directory")
    if not length.all():  # an empty chunk may start where another one does
        filled = length > 0
        bundle, offset, length, block, blocks = (each[filled] for each in (bundle, offset, length, block, blocks))
    order = _by_place(bundle, offset)
    together = np.diff(bundle[order]) == 0
    _require((np.diff(offset[order]) >= length[order][:-1]) | ~together, "two chunks of a bundle overlap")
    _require((np.diff(block[order]) >= blocks[order][:-1]) | ~together, "two chunks share a block's checksum")


def _by_place(bundle: Numbers, offset: Numbers) -> Numbers:
    """The order of chunks in their bundles: by one number, as far as both fit into it, which is much faster."""
    if bundle.max(initial=0) < 2**15 and offset.max(initial=0) < 2**48:
        return np.argsort(bundle << 48 | offset)
    return np.lexsort((offset, bundle))


def _check_segments(columns: Mapping[str, Numbers], segments: Numbers, own: _Own) -> None:
    """Segments have all of a chunk's rows: the living, then what each checkpoint replaced, the last one first."""
    counts, through = columns["segments"], columns["through"]
    _require(int(counts.sum()) == len(segments), "the segments are not those of the chunks")
    _require(through <= own.arranged, "a chunk is arranged by more checkpoints than there are")
    _require((counts + through == 0) | (own.whole == 0), "a whole share is arranged")
    replaced, rows = np.ascontiguousarray(segments.T)
    most = np.repeat(own.arranged, counts)
    _require((replaced >= _ALIVE) & (replaced < most), "a segment names a checkpoint that is not there")
    _require((rows > 0) & (rows <= np.repeat(columns["rows"], counts)), "a segment has no rows, or too many")
    has_some = counts > 0
    lasts = np.cumsum(counts[has_some]) - 1
    sums = np.diff(np.cumsum(rows)[lasts], prepend=0)
    _require(sums == columns["rows"][has_some], "the rows of segments are not those of their chunk")
    falls = (replaced[:-1] == _ALIVE) | ((replaced[1:] >= 0) & (replaced[1:] < replaced[:-1]))
    falls[lasts[:-1]] = True  # from one chunk to the next
    _require(falls, "segments are not in the order of the checkpoints that replaced them")


def _check_coverage(columns: Mapping[str, Numbers], own: _Own) -> None:
    """The chunks of a share are in the order of rows; those of a whole one hold every row, in the order of bytes.

    Only what a grid arranged may overlap: the living and the replaced rows of one range lie in chunks of their own.
    """
    share, first, last = columns["share"], columns["first"], columns["last"]
    apart = share[1:] != share[:-1]
    _require((first[1:] >= first[:-1]) | apart, "the chunks of a share are not in the order of their rows")
    arranged = own.arranged[1:] > 0
    _require((first[1:] > last[:-1]) | apart | arranged, "two chunks of a share hold the same rows")
    free = apart | (own.whole[1:] == 0)
    _require((first[1:] == last[:-1] + 1) | free, "a whole share lacks rows")
    bundle, offset = columns["bundle"], columns["offset"]
    ascends = (bundle[1:] > bundle[:-1]) | ((bundle[1:] == bundle[:-1]) & (offset[1:] >= offset[:-1]))
    _require(ascends | free, "the chunks of a whole share are not in the order of their bytes")


def _require(right: NDArray[np.bool_] | bool, wrong: str) -> None:
    if not np.all(right):
        raise ValueError(wrong)
