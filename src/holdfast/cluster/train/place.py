"""Place: from where a worker's next step starts, as bytes that travel with each push and come back to a replacement."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from holdfast.errors import DamagedData
from holdfast.format.dtypes import code_of, torch_dtype
from holdfast.format.tree import decode_tree, encode_tree

_MAGIC = b"HFP1"
_LENGTHS = struct.Struct("<II")  # of the list of tensors and of the tree, both JSON; the tensors' bytes follow
_NAME = "a worker's place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How a worker goes on."""

    steps: int  # pushed before
    reader: Mapping[str, Any] | None  # the position of its loader
    rng: Mapping[str, Any] | None  # the random generators
    buffers: Mapping[str, torch.Tensor]  # of its copy of the model: running means and the like are no parameters

    def to_bytes(self) -> bytes:
        """For the wire; ``from_bytes`` returns an equal place."""
        tree = {"steps": self.steps, "reader": self.reader, "rng": self.rng, "buffers": dict(self.buffers)}
        encoded = encode_tree(tree, root="place")
        tensors = [tensor.detach().cpu().contiguous() for tensor in encoded.tensors]
        listed = json.dumps([[code_of(tensor.dtype), list(tensor.shape)] for tensor in tensors]).encode()
        parts = [tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
        return b"".join([_MAGIC, _LENGTHS.pack(len(listed), len(encoded.skeleton)), listed, encoded.skeleton, *parts])

    @classmethod
    def from_bytes(cls, data: bytes) -> Place:
        """The place that ``to_bytes`` described; DamagedData where these bytes are none."""
        try:
            tree = _decode(data)
            return cls(steps=tree["steps"], reader=tree["reader"], rng=tree["rng"], buffers=tree["buffers"])
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DamagedData(_NAME, f"cannot be read: {error!r}") from error


def _decode(data: bytes) -> Any:
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError(f"it begins with {data[: len(_MAGIC)]!r} instead of {_MAGIC!r}")
    listed, skeleton = _LENGTHS.unpack_from(data, len(_MAGIC))
    at = len(_MAGIC) + _LENGTHS.size
    tensors = []
    position = at + listed + skeleton
    for code, shape in json.loads(data[at : at + listed]):
        dtype = torch_dtype(code)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        raw = np.frombuffer(data, np.uint8, size, position).copy()
        tensors.append(torch.from_numpy(raw).view(dtype).reshape(shape))
        position += size
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes are left over")
    return decode_tree(data[at + listed : at + listed + skeleton], tensors, name=_NAME)
