"""Checks the fields of a manifest against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.format import fields
from holdfast.format.chunk_check import BundleNumbers, ChunkNumbers, check_chunks, check_places
from holdfast.format.rows import GAP_TYPES, ID_TYPES
from holdfast.format.state_pieces import pieces_bytes

if TYPE_CHECKING:
    from holdfast.format.manifest import BundleRef, Manifest, Place, RowsChunk

_PLACE = ("bundle", "offset", "length", "block")
_CHUNK = ("share", *_PLACE, "rows", "first", "last", "through")


def check_manifest(manifest: Manifest, lived: int) -> Manifest:
    """The same; raises ValueError on numbers that do not agree with each other, or with what it says they add up to."""
    fields.texts([table.spec.name for table in manifest.tables], "tables")
    fields.texts([bundle.name for bundle in manifest.bundles], "bundles")
    check_forms(chunk for table in manifest.tables for chunk in table.chunks)
    check_chunks(_numbers(manifest))
    _check_pieces(manifest)
    _check_places(manifest)
    if manifest.lived != lived:
        raise ValueError(f"its replaced records lived {manifest.lived} checkpoints, not {lived}")
    return manifest


def check_forms(chunks: Iterable[RowsChunk]) -> None:
    """How the ids and columns of chunks are stored, as far as that can be said without the columns."""
    for ids, codec, escapes, loss in {(chunk.ids, chunk.codec, chunk.escapes, chunk.loss) for chunk in chunks}:
        if ids is not None and ids not in ID_TYPES:
            raise ValueError(f"ids is {ids!r}, not one of {', '.join(ID_TYPES)}")
        fields.real(loss, "loss", least=0.0)
        fields.integers(escapes, "escapes")
        if fields.text(codec, "codec") == "exact" and (escapes or ids in GAP_TYPES):
            raise ValueError("a chunk of columns that are stored as they are has escapes, or gaps for its ids")


def bundle_numbers(bundles: Sequence[BundleRef], blocks: Sequence[int] | None = None) -> BundleNumbers:
    """What the places of chunks are compared with; ``blocks``: how many checksums of each bundle there are."""
    sizes = np.array([bundle.size_bytes for bundle in bundles], dtype=np.int64)
    heads = np.array([bundle.head_bytes for bundle in bundles], dtype=np.int64)
    return BundleNumbers(sizes, heads, (heads - 8) // 4 if blocks is None else np.array(blocks, dtype=np.int64))


def _numbers(manifest: Manifest) -> ChunkNumbers:
    own = [(number, chunk) for number, table in enumerate(manifest.tables) for chunk in table.chunks]
    flat = [n for number, c in own for n in (number, *_place(c.place), c.rows, c.first, c.last, c.through)]
    numbers = fields.integers(flat, "a number of a chunk").reshape(-1, len(_CHUNK)).T
    segments = [number for _, chunk in own for segment in chunk.segments for number in segment]
    counts = np.array([len(chunk.segments) for _, chunk in own], dtype=np.int64)
    shares = [(table.start, table.stop, table.whole, len(manifest.replacing)) for table in manifest.tables]
    return ChunkNumbers(
        columns={**dict(zip(_CHUNK, numbers, strict=True)), "segments": counts},
        segments=fields.integers(segments, "a number of a segment", least=-1).reshape(-1, 2),
        shares=np.array(shares, dtype=np.int64).reshape(-1, 4),
        contiguous=np.array([chunk.ids is None for _, chunk in own], dtype=np.bool_),
        gaps=np.array([chunk.ids in GAP_TYPES for _, chunk in own], dtype=np.bool_),
    )


def _check_pieces(manifest: Manifest) -> None:
    """The pieces of the state cover each tensor once, in the order of tensors, and fill their chunks."""
    pieces = [piece for chunk in manifest.state for piece in chunk.pieces]
    fields.integers((n for piece in pieces for n in (piece.tensor, piece.start, piece.length)), "a number of a piece")
    waiting = iter(pieces)
    for number, tensor in enumerate(manifest.tensors):
        done = 0
        while done < tensor.length:
            piece = next(waiting, None)
            if piece is None or (piece.tensor, piece.start) != (number, done) or not piece.length:
                raise ValueError(f"the pieces of the state do not cover tensor {number}")
            done += piece.length
        if done > tensor.length:
            raise ValueError(f"tensor {number} of the state is shorter than its pieces")
    if not manifest.tensors or next(waiting, None) is not None:
        raise ValueError("the pieces of the state are not those of its tensors")


def _check_places(manifest: Manifest) -> None:
    """Those of all chunks, the state's too."""
    places = [chunk.place for table in manifest.tables for chunk in table.chunks]
    places += [chunk.place for chunk in manifest.state]
    numbers = fields.integers((n for place in places for n in _place(place)), "a number of a place").reshape(-1, 4)
    check_places(dict(zip(_PLACE, numbers.T, strict=True)), bundle_numbers(manifest.bundles))
    for chunk in manifest.state:
        if chunk.place.length != pieces_bytes(chunk.pieces):
            raise ValueError("a chunk of state is not as long as its pieces")


def _place(place: Place) -> tuple[Any, ...]:
    return place.bundle, place.offset, place.length, place.block
