"""A bundle: one object that holds chunks, in safetensors layout (docs/spec/bundle.md).

``head | chunk | chunk ...`` where the head is the safetensors header and, as its first tensor, the directory: the
CRC-32 of every block of every chunk. The head's own digest stands in the manifest, so each block can be read and
verified alone. The head is padded to PAGE bytes so that the chunks of a snapshot frame can be written without a copy.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from holdfast.errors import DamagedData
from holdfast.format.dtypes import itemsize
from holdfast.format.layout import padded
from holdfast.kernels.checksums import ready_checksums

BLOCK_BYTES = 128 * 1024
PAGE = 4096
DIRECTORY = "holdfast.directory"
Directory: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint32]]
_MAX_HEADER_BYTES = 100_000_000  # safetensors refuses larger ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A tensor as stock safetensors readers see it; ``offset`` counts from the first byte after the head."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


def blocks_of(length: int) -> int:
    """How many blocks ``length`` bytes of a chunk take."""
    return -(-length // BLOCK_BYTES)


def checksums(chunk: memoryview) -> list[int]:
    """The CRC-32 of each block of a chunk."""
    return ready_checksums()(chunk, BLOCK_BYTES)


def build_head(members: Sequence[Member], body_bytes: int, directory: Sequence[int]) -> bytes:
    """Header and directory for a body laid out as ``members`` (in offset order); gaps become padding tensors."""
    crcs = np.asarray(directory, dtype="<u4").tobytes()
    crcs += bytes(padded(len(crcs)) - len(crcs))
    shift = len(crcs)
    tensors: dict[str, object] = {
        "__metadata__": {"format": "holdfast bundle 1", "block_bytes": str(BLOCK_BYTES)},
        DIRECTORY: _entry("U32", (shift // 4,), 0, shift),
    }
    position = 0
    for member in members:
        if member.name in tensors:
            raise ValueError(f"two tensors of a bundle are named {member.name!r}")
        tensors |= _padding(position, member.offset, shift)
        position = member.offset + _length(member)
        tensors[member.name] = _entry(member.dtype, member.shape, shift + member.offset, shift + position)
    tensors |= _padding(position, body_bytes, shift)
    header = json.dumps(tensors, separators=(",", ":")).encode("utf-8")
    header += b" " * (-(8 + len(header) + shift) % PAGE)
    if len(header) > _MAX_HEADER_BYTES:
        raise ValueError(f"a bundle header of {len(header)} bytes is more than safetensors allows")
    return struct.pack("<Q", len(header)) + header + crcs


def read_directory(head: memoryview, *, name: str) -> Directory:
    """The block checksums in a head whose digest was verified."""
    length = struct.unpack_from("<Q", head)[0] if len(head) >= 8 else 0
    room = len(head) - 8 - length
    if room < 0 or room % 4:
        raise DamagedData(name, "its head does not end with a directory of checksums")
    return np.frombuffer(head[8 + length :], dtype="<u4")


def verify_blocks(data: memoryview, first_block: int, directory: Directory, *, name: str) -> None:
    """Check ``data``, which starts at block ``first_block`` of the directory, block by block."""
    found = checksums(data)
    if not 0 <= first_block <= len(directory) - len(found):
        raise DamagedData(name, f"its directory has no checksums from block {first_block} on")
    for number, crc in enumerate(found, start=first_block):
        if crc != int(directory[number]):
            raise DamagedData(name, f"block {number} does not match its checksum")


def _padding(start: int, stop: int, shift: int) -> dict[str, object]:
    """What stands between two tensors, as a tensor: safetensors allows no holes."""
    if stop < start:
        raise ValueError(f"a tensor of a bundle starts or ends at byte {stop}, inside the one before it")
    return {f"pad.{start}": _entry("U8", (stop - start,), shift + start, shift + stop)} if stop > start else {}


def _entry(dtype: str, shape: tuple[int, ...], start: int, stop: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def _length(member: Member) -> int:
    return math.prod(member.shape) * itemsize(member.dtype)
