"""Writes sections of tensors as bundles: copied into aligned memory, hashed, and written past the page cache.

Several threads take sections from one list. A section is hashed in the copy, so that what is stored is what the digest
says even if the tensor changes meanwhile; where the last checkpoint holds the same bytes, the copy is dropped. Hashing
takes the most time, and writing waits for the disk, so a few more threads than processors keep both busy.
"""

from __future__ import annotations

import hashlib
import mmap
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.checkpoint.read.crew import WORKERS
from holdfast.checkpoint.snapshot.tensor_filler import bytes_of
from holdfast.format.bundle import BLOCK_BYTES, Member, blocks_of, build_head
from holdfast.format.catalog import object_name
from holdfast.format.dcp_state import SECTION_BYTES, sections_of
from holdfast.format.document import digest
from holdfast.format.layout import padded
from holdfast.format.manifest import BundleRef, Place, TensorSpec
from holdfast.integrations.dcp.stored import StoredPiece, StoredSection
from holdfast.kernels.checksums import fast_checksums
from holdfast.storage import Store

_FRAME_BYTES = 4 * SECTION_BYTES
_THREADS = WORKERS + 1  # one of them mostly waits for the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor to store: what stock readers of a bundle see it as, and what is stored of it already, by its start."""

    name: str
    spec: TensorSpec
    tensor: Tensor
    known: Mapping[int, StoredSection]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """Bytes ``start ..`` of a source, which is the ``owner``-th."""

    owner: int
    start: int
    source: Source
    data: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A section in a frame."""

    section: _Section
    offset: int
    digest: bytes


class BundleWriter:
    """Writes one rank's bundles of one checkpoint."""

    def __init__(self, store: Store, checkpoint: str, rank: int) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._rank = rank
        self._lock = threading.Lock()
        self._attempted: list[str] = []

    def write(self, sources: Iterable[Source]) -> list[StoredPiece]:
        """Store these, in their order. Returns when they are durable."""
        fast_checksums()  # compiled before the threads need it
        shared = _Shared(sources)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-dcp") as pool:
            working = [pool.submit(_Frame(self, shared).fill) for _ in range(_THREADS)]
        for each in working:
            each.result()
        return shared.stored()

    def put(self, body: memoryview, placed: Sequence[_Placed]) -> BundleRef:
        """Store a frame as the next bundle; the chunks' checksums stand in its head in their order."""
        checksums = fast_checksums()
        directory = [crc for each in placed for crc in checksums(_chunk(body, each), BLOCK_BYTES)]
        head = build_head([_member(each) for each in placed], len(body), directory)
        with self._lock:
            name = object_name(self._checkpoint, f"{self._rank:05d}-{len(self._attempted) + 1:06d}.safetensors")
            self._attempted.append(name)
        self._store.put(name, [head, body])
        return BundleRef(name=name, size_bytes=len(head) + len(body), head_bytes=len(head), digest=digest(head))

    def discard(self) -> None:
        """Delete what was written for a checkpoint that will not be."""
        self._store.delete(self._attempted)


class _Shared:
    """The sections that threads share out among themselves, and where each went."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._lock = threading.Lock()
        self._specs: list[TensorSpec] = []
        self._found: list[dict[int, StoredSection]] = []
        self._waiting = self._sections(sources)
        self._failed = False

    def take(self) -> _Section | None:
        """The next one. A tensor is resolved when its first section is taken, because that may take memory."""
        with self._lock:
            try:
                return None if self._failed else next(self._waiting, None)
            except BaseException:
                self._failed = True
                raise

    def give_up(self) -> None:
        """Let the other threads stop: one has failed."""
        self._failed = True

    def add(self, section: _Section, stored: StoredSection) -> None:
        """A section is stored."""
        with self._lock:
            self._found[section.owner][section.start] = stored

    def stored(self) -> list[StoredPiece]:
        """What became of each source."""
        return [
            StoredPiece(spec=spec, sections=tuple(found[start] for start in sorted(found)))
            for spec, found in zip(self._specs, self._found, strict=True)
        ]

    def _sections(self, sources: Iterable[Source]) -> Iterator[_Section]:
        for owner, source in enumerate(sources):
            self._specs.append(source.spec)
            self._found.append({})
            data = bytes_of(source.tensor)
            for start, length in sections_of(len(data)):
                yield _Section(owner=owner, start=start, source=source, data=data[start : start + length])


class _Frame:
    """The memory of one thread: filled with sections, written as a bundle, filled again."""

    def __init__(self, writer: BundleWriter, shared: _Shared) -> None:
        self._writer = writer
        self._shared = shared
        # Anonymous memory begins at a page, as writing past the page cache needs it.
        self._memory: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, _FRAME_BYTES), np.uint8)
        self._placed: list[_Placed] = []
        self._used = 0

    def fill(self) -> None:
        """Take sections until none is left."""
        try:
            while (section := self._shared.take()) is not None:
                if self._used + padded(len(section.data)) > len(self._memory):
                    self._write()
                self._add(section)
            self._write()
        except BaseException:
            self._shared.give_up()
            raise

    def _add(self, section: _Section) -> None:
        offset, length = self._used, len(section.data)
        target = self._memory[offset : offset + length]
        if section.data.is_cpu:
            np.copyto(target, section.data.numpy())  # torch would start threads of its own for it
        else:
            torch.from_numpy(target).copy_(section.data)
        found = hashlib.sha256(target.data).digest()
        known = section.source.known.get(section.start)
        if known is not None and (known.length, known.digest) == (length, found):
            self._shared.add(section, known)
            return
        self._used += padded(length)
        self._memory[offset + length : self._used] = 0
        self._placed.append(_Placed(section=section, offset=offset, digest=found))

    def _write(self) -> None:
        if not self._placed:
            return
        bundle = self._writer.put(self._memory[: self._used].data, self._placed)
        block = 0
        for each in self._placed:
            length = len(each.section.data)
            place = Place(bundle=0, offset=bundle.head_bytes + each.offset, length=padded(length), block=block)
            block += blocks_of(padded(length))
            stored = StoredSection(
                start=each.section.start, length=length, digest=each.digest, bundle=bundle, place=place
            )
            self._shared.add(each.section, stored)
        self._placed, self._used = [], 0


def _chunk(body: memoryview, placed: _Placed) -> memoryview:
    return body[placed.offset : placed.offset + padded(len(placed.section.data))]


def _member(placed: _Placed) -> Member:
    source, section = placed.section.source, placed.section
    if len(section.data) == source.spec.length:
        return Member(name=source.name, dtype=source.spec.dtype, shape=source.spec.shape, offset=placed.offset)
    name = f"{source.name}+{section.start}"
    return Member(name=name, dtype="U8", shape=(len(section.data),), offset=placed.offset)
