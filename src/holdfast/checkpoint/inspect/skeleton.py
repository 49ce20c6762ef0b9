"""A state tree without the contents of its tensors: small enough to print."""

from __future__ import annotations

from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_tensors
from holdfast.checkpoint.training.forms import as_tensor
from holdfast.format.manifest import Manifest
from holdfast.format.tree import decode_tree


def read_skeleton(fetcher: Fetcher, manifest: Manifest) -> object:
    """The state tree that one writer saved, zeros in the place of every tensor; reads no more than that."""
    skeleton = read_tensors(fetcher, manifest, {SKELETON})[SKELETON]
    # The system gives memory for zeros only when somebody writes there.
    zeros = [as_tensor(memoryview(bytearray(spec.length)), spec.dtype, spec.shape) for spec in manifest.tensors[1:]]
    return decode_tree(bytes(skeleton), zeros)
