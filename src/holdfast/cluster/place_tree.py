"""A worker's place as the tree that it encodes, in a process without torch: tensors come as their elements."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from holdfast.format.dtypes import itemsize
from holdfast.format.host_values import HostTensor
from holdfast.format.tree import decode_tree

MAGIC = b"HFP1"
LENGTHS = struct.Struct("<II")  # of the list of tensors and of the tree, both JSON; the tensors' bytes follow


def place_tree(place: bytes | None) -> dict[str, Any]:
    """Its ``steps``, ``reader``, ``rng`` and ``buffers``; nothing for the beginning."""
    if place is None:
        return {}
    listed, skeleton = LENGTHS.unpack_from(place, len(MAGIC))
    at = len(MAGIC) + LENGTHS.size
    position = at + listed + skeleton
    tensors = []
    for code, shape in json.loads(place[at : at + listed]):
        size = int(np.prod(shape, dtype=np.int64)) * itemsize(code)
        tensors.append(HostTensor.stored(memoryview(place)[position : position + size], code, tuple(shape)))
        position += size
    found: dict[str, Any] = decode_tree(place[at + listed : at + listed + skeleton], tensors, host=True)
    return found
