"""A state tree without the contents of its tensors: small enough to print."""

from __future__ import annotations

import torch

from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.restore.state_tensors import SKELETON, read_tensors
from holdfast.format.dtypes import torch_dtype
from holdfast.format.manifest import Manifest
from holdfast.format.tree import decode_tree


def read_skeleton(fetcher: Fetcher, manifest: Manifest) -> object:
    """The state tree that one writer saved, zeros in the place of every tensor; reads no more than that."""
    skeleton = read_tensors(fetcher, manifest, {SKELETON})[SKELETON]
    # One element, shown as many: a checkpoint may be larger than memory.
    zeros = [torch.zeros((), dtype=torch_dtype(spec.dtype)).expand(spec.shape) for spec in manifest.tensors[1:]]
    return decode_tree(bytes(skeleton), zeros)
