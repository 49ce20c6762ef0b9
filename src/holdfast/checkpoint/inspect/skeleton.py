"""A state tree without the contents of its tensors: small enough to print."""

from __future__ import annotations

from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.restore.columns import as_tensor
from holdfast.format.layout import padded
from holdfast.format.manifest import Manifest
from holdfast.format.tree import decode_tree


def read_skeleton(fetcher: Fetcher, manifest: Manifest) -> object:
    """The state tree that one writer saved, zeros in the place of every tensor; reads no more than that."""
    skeleton = bytearray(manifest.tensors[0].length)
    for chunk in manifest.state:
        offset = 0
        for piece in chunk.pieces:
            if piece.tensor == 0:
                bundle = manifest.bundles[chunk.place.bundle]
                data = fetcher.chunk(bundle, chunk.place, offset, offset + piece.length)
                skeleton[piece.start : piece.start + piece.length] = data
            offset += padded(piece.length)
    # The system gives memory for zeros only when somebody writes there.
    zeros = [as_tensor(memoryview(bytearray(spec.length)), spec.dtype, spec.shape) for spec in manifest.tensors[1:]]
    return decode_tree(bytes(skeleton), zeros)
