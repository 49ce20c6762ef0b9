"""The objects of a run's directory, each checked as it is read (docs/spec: README.md, document.md, bundle.md)."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Json = dict[str, Any]

_BLOCK_BYTES = 131072
_NAME = re.compile(r"(?!\.{1,2}(/|$))[A-Za-z0-9._-]+(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)*")
DTYPES = {
    "BOOL": "?", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "I8": "i1", "I16": "<i2", "I32": "<i4",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BF16": "<u2", "F8_E4M3": "u1",
    "F8_E4M3FNUZ": "u1", "F8_E5M2": "u1", "F8_E5M2FNUZ": "u1",
}  # fmt: skip


class Damaged(Exception):
    """An object is missing, or not what the objects that refer to it say."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name}: {what}")
        self.name = name


class Objects:
    """Named objects under one directory. Nothing is remembered: every read opens the file anew."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def sizes(self) -> dict[str, int]:
        """Every object's size by its name, in name order."""
        found = (Path(folder) / name for folder, _, names in os.walk(self._root) for name in names)
        files = ((path.relative_to(self._root).as_posix(), path) for path in found)
        return {name: path.stat().st_size for name, path in sorted(files) if _NAME.fullmatch(name)}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes ``[start, stop)`` of an object, or all of it."""
        require(_NAME.fullmatch(name) is not None, name, "is no object's name")
        try:
            with (self._root / name).open("rb") as file:
                file.seek(start)
                data = file.read() if stop is None else file.read(stop - start)
        except OSError as error:
            raise Damaged(name, "is missing") from error
        require(stop is None or len(data) == stop - start, name, f"ends before byte {stop}")
        return data

    def document(self, kind: str | None, name: str) -> Json:
        """The body of a document that is verified by itself alone."""
        line, newline, body = self.read(name).partition(b"\n")
        words = line.decode("latin-1").split(" ")
        require(newline == b"\n" and len(words) == 4 and words[0] == "holdfast", name, "is no document")
        require(kind in (None, words[1]), name, f"is a {words[1]}, not a {kind}")
        require(words[3] == hashlib.sha256(body).hexdigest(), name, "does not match its digest")
        require(words[2] == "1", name, f"is of version {words[2]}")
        document = json.loads(body)
        assert isinstance(document, dict)
        return document

    def referred(self, kind: str, ref: list[Any]) -> Json:
        """The body of a document that another one refers to."""
        name, size, digest = ref
        data = self.read(name)
        require(len(data) == size, name, f"has {len(data)} bytes, not {size}")
        require(hashlib.sha256(data).hexdigest() == digest, name, "does not match the digest that refers to it")
        return self.document(kind, name)

    def chunk(self, bundle: list[Any], place: list[int]) -> bytes:
        """A chunk's bytes, every block checked."""
        name, size, head_bytes, _ = bundle
        _, offset, length, block = place
        require(offset >= head_bytes and offset + length <= size, name, "a chunk lies outside its body")
        require(offset % 8 == 0 and length % 8 == 0, name, "a chunk is not aligned")
        directory = self._directory(bundle)
        chunk = self.read(name, offset, offset + length)
        for number, start in enumerate(range(0, length, _BLOCK_BYTES), start=block):
            crc = zlib.crc32(chunk[start : start + _BLOCK_BYTES])
            require(directory[number] == crc, name, f"block {number} does not match its checksum")
        return chunk

    def check_bundle(self, bundle: list[Any], places: Iterable[list[int]], *, complete: bool) -> None:
        """The header's tensors cover the object; the chunks lie in order, and cover it where it is ``complete``."""
        name, size, head_bytes, _ = bundle
        directory = self._directory(bundle)
        header_bytes, header = self._header(name)
        require(8 + header_bytes + 4 * len(directory) == head_bytes, name, "its head has another length")
        require(self._covered(name, header) == size - 8 - header_bytes, name, "is not as long as its header says")
        require(len(self.read(name)) == size, name, "is not as long as its manifest says")
        end, blocks = head_bytes, 0
        for _, offset, length, block in sorted(places, key=lambda place: place[1]):
            follows = (offset, block) == (end, blocks) if complete else offset >= end and block >= blocks
            require(follows, name, f"no chunk starts at {end} with block {blocks}")
            end, blocks = offset + length, block + -(-length // _BLOCK_BYTES)
        whole = end == size and len(directory) == blocks + blocks % 2
        require(whole or not complete, name, "holds more than its chunks")

    def _directory(self, bundle: list[Any]) -> Array:
        name, _, head_bytes, digest = bundle
        head = self.read(name, 0, head_bytes)
        require(hashlib.sha256(head).hexdigest() == digest and head_bytes % 4096 == 0, name, "has another head")
        (header_bytes,) = struct.unpack_from("<Q", head)
        return np.frombuffer(head[8 + header_bytes :], "<u4")

    def _header(self, name: str) -> tuple[int, Json]:
        (header_bytes,) = struct.unpack("<Q", self.read(name, 0, 8))
        header = json.loads(self.read(name, 8, 8 + header_bytes))
        metadata = {"format": "holdfast bundle 1", "block_bytes": str(_BLOCK_BYTES)}
        require(header.pop("__metadata__") == metadata, name, "is another kind of bundle")
        return header_bytes, header

    def _covered(self, name: str, header: Json) -> int:
        position = 0
        for tensor in sorted(header.values(), key=lambda tensor: tensor["data_offsets"]):
            start, stop = tensor["data_offsets"]
            fits = start == position and stop - start == size_of(tensor["dtype"], tensor["shape"])
            require(fits, name, f"its header has a hole or an overlap at {position}")
            position = stop
        return position


def require(condition: bool, name: str, what: str) -> None:
    """Raise Damaged unless the object ``name`` is as it should be."""
    if not condition:
        raise Damaged(name, what)


def size_of(dtype: str, shape: list[int]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize


def as_array(data: bytes | bytearray, dtype: str, shape: list[int]) -> Array:
    """Bytes as an array."""
    return np.frombuffer(data, DTYPES[dtype]).reshape(shape)


def cut(chunk: bytes, lengths: list[int], name: str) -> Iterator[bytes]:
    """Pieces of these lengths, each padded with zeros to a multiple of 8 bytes."""
    position = 0
    for length in lengths:
        end = position + -(-length // 8) * 8
        require(not any(chunk[position + length : end]), name, "has padding that is not zero")
        yield chunk[position : position + length]
        position = end
    require(position == len(chunk), name, "has a chunk of another length than its columns")
