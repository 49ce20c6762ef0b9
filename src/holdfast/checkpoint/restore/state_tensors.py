"""Reads state tensors back from their pieces: all of them, or no more than some need."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.format.host_values import HostTensor
from holdfast.format.manifest import Manifest, StateChunk
from holdfast.format.state_pieces import Piece, pieces_bytes, placed
from holdfast.format.tree import decode_tree, tiles_in

SKELETON = 0  # the state tensor that holds the tree


def read_tensors(fetcher: Fetcher, manifest: Manifest, wanted: Collection[int]) -> dict[int, bytearray]:
    """The bytes of these state tensors, and as little as possible of the others."""
    tensors = {number: bytearray(manifest.tensors[number].length) for number in wanted}
    for chunk in manifest.state:
        for start, pieces in _runs(chunk, wanted):
            stop = min(start + pieces_bytes(pieces), chunk.place.length)
            data = fetcher.chunk(manifest.bundles[chunk.place.bundle], chunk.place, start, stop)
            for offset, piece in placed(pieces):
                tensors[piece.tensor][piece.start : piece.start + piece.length] = data[offset : offset + piece.length]
    return tensors


def read_state(fetcher: Fetcher, manifest: Manifest, *, host: bool = False) -> object:
    """The state tree that one writer saved; ``host``: in the form without torch."""
    skeleton = bytes(read_tensors(fetcher, manifest, {SKELETON})[SKELETON])
    tiles = tiles_in(skeleton)  # which the tree does not refer to: they are boxes of what all writers have
    specs = manifest.tensors[: len(manifest.tensors) - tiles]
    found = read_tensors(fetcher, manifest, range(SKELETON + 1, len(specs)))
    decoded = [
        HostTensor.stored(memoryview(found[number]), spec.dtype, spec.shape)
        for number, spec in enumerate(specs)
        if number != SKELETON
    ]
    tensors = decoded if host else [each.in_torch() for each in decoded]
    return decode_tree(skeleton, [*tensors, *[None] * tiles], host=host)


@dataclass(frozen=True, slots=True)
class _Located:
    """A piece of a tensor, and where it begins in a chunk."""

    chunk: StateChunk
    offset: int
    piece: Piece


class StateBytes:
    """The bytes of a part's state tensors, any range of them."""

    def __init__(self, fetcher: Fetcher, manifest: Manifest) -> None:
        self._fetcher = fetcher
        self._manifest = manifest
        self._pieces: dict[int, list[_Located]] = {}
        for chunk in manifest.state:
            for offset, piece in placed(chunk.pieces):
                self._pieces.setdefault(piece.tensor, []).append(_Located(chunk, offset, piece))

    def read(self, tensor: int, start: int, stop: int) -> bytearray:
        """Bytes ``start .. stop`` of a tensor, whole blocks of it read and verified."""
        found = bytearray(stop - start)
        for each in self._pieces.get(tensor, ()):
            low, high = max(start, each.piece.start), min(stop, each.piece.start + each.piece.length)
            if low < high:
                place, ahead = each.chunk.place, each.offset - each.piece.start
                bundle = self._manifest.bundles[place.bundle]
                found[low - start : high - start] = self._fetcher.chunk(bundle, place, low + ahead, high + ahead)
        return found


def _runs(chunk: StateChunk, wanted: Collection[int]) -> Iterator[tuple[int, list[Piece]]]:
    """The wanted pieces of a chunk, those that lie side by side together, and where they begin."""
    start, run = 0, list[Piece]()
    for offset, piece in placed(chunk.pieces):
        if piece.tensor in wanted:
            start = start if run else offset
            run.append(piece)
        elif run:
            yield start, run
            run = []
    if run:
        yield start, run
