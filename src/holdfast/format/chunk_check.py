"""What the numbers of chunks must be, among themselves and beside what they refer to; checked for many at once.

Manifests and outlines say the same of chunks, in two notations. Both bring their numbers here, in columns, before
anything is computed from them: what passes points into its bundle and into its share of the table, and holds each of
its rows once. What only the bytes can tell (the ids themselves, checksums) is checked where they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.fields import Numbers
from holdfast.format.layout import ALIGNMENT

_ALIVE = -1  # in a segment: replaced by none of the checkpoints that the manifest names


class BundleNumbers(NamedTuple):
    """A bundle's bytes, those of its head, and how many block checksums it can have."""

    size_bytes: int
    head_bytes: int
    blocks: int


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
        _require(column >= 0, f"{name} of a chunk is negative")
    _require(columns["share"] < len(chunks.shares), "a chunk names a share that is not there")
    _require(np.diff(columns["share"]) >= 0, "chunks do not come in the order of shares")
    shares = chunks.shares
    _check_rows(columns, shares[columns["share"]], chunks.contiguous)
    _check_segments(columns, chunks.segments, shares[columns["share"]])
    ordered = chunks.contiguous | chunks.gaps
    _require((columns["segments"] == 0) | ~ordered, "a chunk that is arranged does not have its ids")
    _check_coverage(columns, shares)


def _check_rows(columns: Mapping[str, Numbers], shares: Numbers, contiguous: NDArray[np.bool_]) -> None:
    """Each chunk's rows lie in its share, and are as many as they can be."""
    first, last, rows = columns["first"], columns["last"], columns["rows"]
    _require(rows > 0, "a chunk has no rows")
    _require((shares[:, 0] <= first) & (first <= last) & (last < shares[:, 1]), "a chunk's rows leave its share")
    filled = rows == last - first + 1
    _require(rows <= last - first + 1, "a chunk has more rows than there are from its first to its last")
    _require(filled | ~contiguous, "a contiguous chunk does not have all rows from its first to its last")
    _require(contiguous | (shares[:, 2] == 0), "a whole share has a chunk that is not contiguous")


def check_places(columns: Mapping[str, Numbers], bundles: Sequence[BundleNumbers]) -> None:
    """Each chunk lies behind the head of its bundle, and has its checksums; nothing belongs to two chunks."""
    _require(columns["bundle"] < len(bundles), "a chunk names a bundle that is not there")
    offset, length, block = columns["offset"], columns["length"], columns["block"]
    size, head, checksums = np.array(bundles, dtype=np.int64).reshape(-1, 3)[columns["bundle"]].T
    _require((offset % ALIGNMENT == 0) & (length % ALIGNMENT == 0), "a chunk is not aligned")
    _require((head <= offset) & (offset <= size) & (length <= size - offset), "a chunk leaves its bundle")
    blocks = -(-length // BLOCK_BYTES)
    _require((block <= checksums) & (blocks <= checksums - block), "a chunk has no checksums in its bundle's directory")
    order = np.lexsort((offset, columns["bundle"]))
    together = np.diff(columns["bundle"][order]) == 0
    _require((np.diff(offset[order]) >= length[order][:-1]) | ~together, "two chunks of a bundle overlap")
    _require((np.diff(block[order]) >= blocks[order][:-1]) | ~together, "two chunks share a block's checksum")


def _check_segments(columns: Mapping[str, Numbers], segments: Numbers, shares: Numbers) -> None:
    """Segments have all of a chunk's rows: the living, then what each checkpoint replaced, the last one first."""
    counts = columns["segments"]
    _require(int(counts.sum()) == len(segments), "the segments are not those of the chunks")
    _require(columns["through"] <= shares[:, 3], "a chunk is arranged by more checkpoints than there are")
    _require(((counts == 0) & (columns["through"] == 0)) | (shares[:, 2] == 0), "a whole share is arranged")
    replaced, rows = segments.T
    owner = np.repeat(np.arange(len(counts)), counts)
    _require((replaced >= _ALIVE) & (replaced < shares[owner, 3]), "a segment names a checkpoint that is not there")
    _require((rows > 0) & (rows <= columns["rows"][owner]), "a segment does not have as many rows as it can")
    sums = np.zeros(len(counts), dtype=np.int64)
    np.add.at(sums, owner, rows)
    _require((sums == columns["rows"]) | (counts == 0), "the rows of segments are not those of their chunk")
    falls = (replaced[:-1] == _ALIVE) | ((replaced[1:] >= 0) & (replaced[1:] < replaced[:-1]))
    _require(falls | (np.diff(owner) > 0), "segments are not in the order of the checkpoints that replaced them")


def _check_coverage(columns: Mapping[str, Numbers], shares: Numbers) -> None:
    """The chunks of a share are in the order of rows; those of a whole one hold every row, in the order of bytes.

    Only what a grid arranged may overlap: the living and the replaced rows of one range lie in chunks of their own.
    """
    share, first, last = columns["share"], columns["first"], columns["last"]
    beside = np.diff(share) == 0
    _require((np.diff(first) >= 0) | ~beside, "the chunks of a share are not in the order of their rows")
    arranged = shares[share[1:], 3] > 0
    _require((first[1:] > last[:-1]) | ~beside | arranged, "two chunks of a share hold the same rows")
    held = np.zeros(len(shares), dtype=np.int64)
    np.add.at(held, share, columns["rows"])
    whole = shares[:, 2] != 0
    _require((held == shares[:, 1] - shares[:, 0]) | ~whole, "a whole share lacks rows")
    _require((first[1:] == last[:-1] + 1) | ~beside | ~whole[share[1:]], "a whole share lacks rows")
    bundle, offset = columns["bundle"], columns["offset"]
    ascends = (np.diff(bundle) > 0) | ((np.diff(bundle) == 0) & (np.diff(offset) >= 0))
    _require(ascends | ~beside | ~whole[share[1:]], "the chunks of a whole share are not in the order of their bytes")


def _require(right: NDArray[np.bool_] | bool, wrong: str) -> None:
    if not np.all(right):
        raise ValueError(wrong)
