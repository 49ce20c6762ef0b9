"""A worker's place as bytes: how many steps it had pushed, and four trees, each with the tensors that it refers to.

Servers keep places without a look at them. When they save, they need the trees, in a process without torch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import DamagedData
from holdfast.format.dtypes import itemsize
from holdfast.format.host_values import HostTensor
from holdfast.format.tree import decode_tree, encode_tree

SECTIONS = ("reader", "drawn", "rng", "buffers")  # what a reader has drawn stands apart: it seldom changes
_MAGIC = b"HFP2"
_HEAD = struct.Struct("<4sQIIII")  # magic, steps, the length of each section
_LENGTHS = struct.Struct("<II")  # of a section's list of tensors and of its tree, both JSON; the tensors' bytes follow
_NAME = "a worker's place"


def join_place(steps: int, sections: Sequence[bytes]) -> bytes:
    """A place of its sections, in their order."""
    return b"".join([_HEAD.pack(_MAGIC, steps, *map(len, sections)), *sections])


def join_section(listed: Sequence[tuple[str, Sequence[int]]], skeleton: bytes, tensors: Sequence[bytes]) -> bytes:
    """A section of a tree's skeleton and its tensors, listed by type and shape."""
    head = json.dumps([[code, list(shape)] for code, shape in listed]).encode()
    return b"".join([_LENGTHS.pack(len(head), len(skeleton)), head, skeleton, *tensors])


def host_place(steps: int, *, reader: Any, rng: Any, buffers: Mapping[str, HostTensor]) -> bytes:
    """A place of what a checkpoint holds of a rank, in a process without torch."""
    drawn = None
    if reader is not None and "drawn" in reader:
        reader, drawn = {key: value for key, value in reader.items() if key != "drawn"}, reader["drawn"]
    values = zip(SECTIONS, (reader, drawn, rng, dict(buffers)), strict=True)
    return join_place(steps, [_host_section(name, value) for name, value in values])


def _host_section(name: str, value: Any) -> bytes:
    encoded = encode_tree(value, root=f"place.{name}", host=True)
    tensors: Sequence[Any] = encoded.tensors
    listed = [(tensor.dtype, tensor.shape) for tensor in tensors]
    return join_section(listed, encoded.skeleton, [tensor.raw.tobytes() for tensor in tensors])


def place_tree(place: bytes | None) -> dict[str, Any]:
    """Its ``steps`` and sections, tensors as ``HostTensor``; nothing for the beginning. Raises DamagedData."""
    if place is None:
        return {}
    try:
        magic, steps, *lengths = _HEAD.unpack_from(place)
        if magic != _MAGIC or len(place) != _HEAD.size + sum(lengths):
            raise ValueError(f"it begins with {magic!r} and has {len(place)} bytes")
        found: dict[str, Any] = {"steps": steps}
        at = _HEAD.size
        for name, length in zip(SECTIONS, lengths, strict=True):
            found[name] = _section_tree(memoryview(place)[at : at + length])
            at += length
        if (drawn := found.pop("drawn")) is not None:
            found["reader"]["drawn"] = drawn
        return found
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise DamagedData(_NAME, f"cannot be read: {error!r}") from error


def _section_tree(section: memoryview) -> Any:
    listed, skeleton = _LENGTHS.unpack_from(section)
    at = _LENGTHS.size
    position = at + listed + skeleton
    tensors = []
    for code, shape in json.loads(bytes(section[at : at + listed])):
        size = itemsize(code)
        for length in shape:
            size *= length
        tensors.append(HostTensor.stored(section[position : position + size], code, tuple(shape)))
        position += size
    if position != len(section):
        raise ValueError(f"{len(section) - position} bytes are left over")
    return decode_tree(bytes(section[at + listed : at + listed + skeleton]), tensors, name=_NAME, host=True)
