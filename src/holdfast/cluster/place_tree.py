"""A worker's place as bytes: how many steps it had pushed, and five trees, each with the tensors that it refers to.

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

_APART = ("drawn", "epoch_start")  # of a reader's state: they seldom change, and the rest does with every batch
_SECTIONS = ("reader", *_APART, "rng", "buffers")
_MAGIC = b"HFP3"
_HEAD = struct.Struct("<4sQIIIII")  # magic, steps, the length of each section
_LENGTHS = struct.Struct("<II")  # of a section's list of tensors and of its tree, both JSON; the tensors' bytes follow
_NAME = "a worker's place"


def sections_of(*, reader: Any, rng: Any, buffers: Any) -> dict[str, Any]:
    """The trees that a place is stored as, in their order."""
    apart = {name: None if reader is None else reader.get(name) for name in _APART}
    rest = None if reader is None else {key: value for key, value in reader.items() if key not in _APART}
    return {"reader": rest, **apart, "rng": rng, "buffers": buffers}


def join_place(steps: int, sections: Sequence[bytes]) -> bytes:
    """A place of its sections, in their order."""
    return b"".join([_HEAD.pack(_MAGIC, steps, *map(len, sections)), *sections])


def join_section(listed: Sequence[tuple[str, Sequence[int]]], skeleton: bytes, tensors: Sequence[bytes]) -> bytes:
    """A section of a tree's skeleton and its tensors, listed by type and shape."""
    head = json.dumps([[code, list(shape)] for code, shape in listed]).encode()
    return b"".join([_LENGTHS.pack(len(head), len(skeleton)), head, skeleton, *tensors])


def host_place(steps: int, *, reader: Any, rng: Any, buffers: Mapping[str, HostTensor]) -> bytes:
    """A place of what a checkpoint holds of a rank, in a process without torch."""
    sections = sections_of(reader=reader, rng=rng, buffers=dict(buffers))
    return join_place(steps, [_host_section(name, value) for name, value in sections.items()])


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
        for name, length in zip(_SECTIONS, lengths, strict=True):
            found[name] = _section_tree(memoryview(place)[at : at + length])
            at += length
        apart = {name: value for name in _APART if (value := found.pop(name)) is not None}
        if found["reader"] is not None:
            found["reader"] |= apart
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
