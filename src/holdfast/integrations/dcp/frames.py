"""Memory that sections of tensors are copied to, page by page as writing past the page cache needs it."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.format.bundle import BLOCK_BYTES, PAGE, blocks_of
from holdfast.format.dcp_state import SECTION_BYTES
from holdfast.format.layout import padded
from holdfast.format.manifest import BundleRef, Place
from holdfast.integrations.dcp.sections import Section, Sections
from holdfast.integrations.dcp.stored import StoredSection
from holdfast.kernels.checksums import fast_checksums
from holdfast.kernels.digests import MOST_AT_ONCE, fast_copies
from holdfast.storage import Buffer

_FRAME_BYTES = MOST_AT_ONCE * SECTION_BYTES
_HEAD_BYTES = 64 << 10  # before the body, for a head of about 500 sections: both are then written in one piece
_LARGE_BYTES = 1 << 20  # a body that is written around the page cache
_HUGE_PAGE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSection:
    """A section in a frame: its SHA-256, and the checksums of its blocks."""

    section: Section
    offset: int
    digest: bytes
    checksums: Sequence[int]


class Frame:
    """Memory that one thread fills with sections and another one writes as a bundle, again and again.

    A section is hashed as it is copied, so that what is stored is what the digest says even if the tensor changes
    meanwhile; where the last checkpoint holds the same bytes, the copy is dropped.
    """

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._pages = _pages(_HEAD_BYTES + _FRAME_BYTES)
        self._memory = self._pages[_HEAD_BYTES:]
        self._placed: list[PlacedSection] = []
        self._used = 0

    @property
    def placed(self) -> Sequence[PlacedSection]:
        """The sections in it, in their order."""
        return self._placed

    @property
    def body_bytes(self) -> int:
        """What a bundle of them has after its head; a large one ends with a page, so that no byte needs a cache."""
        return self._used if self._used < _LARGE_BYTES else -(-self._used // PAGE) * PAGE

    def fill(self) -> bool:
        """Take sections until there is no room for more or none is left; whether any is to be written."""
        while taken := self._take():
            self._add(taken)
        return bool(self._placed)

    def behind(self, head: bytes) -> list[Buffer]:
        """A bundle: its head and the body, in one piece unless the head is too long for the room before the body."""
        self._memory[self._used : self.body_bytes] = 0
        if len(head) > _HEAD_BYTES:
            return [head, self._memory[: self.body_bytes].data]
        start = _HEAD_BYTES - len(head)
        self._pages[start:_HEAD_BYTES] = np.frombuffer(head, np.uint8)
        return [self._pages[start : _HEAD_BYTES + self.body_bytes].data]

    def stored(self, bundle: BundleRef) -> None:
        """Tell where the sections are."""
        block = 0
        for each in self._placed:
            length = len(each.section.data)
            place = Place(bundle=0, offset=bundle.head_bytes + each.offset, length=padded(length), block=block)
            block += blocks_of(padded(length))
            stored = StoredSection(
                start=each.section.start, length=length, digest=each.digest, bundle=bundle, place=place
            )
            self._sections.add(each.section, stored)

    def clear(self) -> None:
        """Make room for others."""
        self._placed, self._used = [], 0

    def _take(self) -> list[Section]:
        """As many sections as are hashed side by side; none when the frame is more than half full.

        What then fits would be too few.
        """
        room_bytes = len(self._memory) - self._used
        return self._sections.take(room_bytes, MOST_AT_ONCE) if room_bytes >= len(self._memory) // 2 else []

    def _add(self, taken: Sequence[Section]) -> None:
        ends = np.cumsum([self._used, *(padded(len(each.data)) for each in taken)])
        copies = [self._memory[end : end + len(each.data)] for end, each in zip(ends[:-1], taken, strict=True)]
        sources = [_in_memory(each, copy) for each, copy in zip(taken, copies, strict=True)]
        for section, copy, found in zip(taken, copies, fast_copies()(sources, copies), strict=True):
            known = section.known
            if known is not None and (known.length, known.digest) == (len(copy), found):
                self._sections.add(section, known)
            else:
                self._keep(section, copy, found)

    def _keep(self, section: Section, copy: NDArray[np.uint8], found: bytes) -> None:
        """In the first free place, which is where it is unless one before it was dropped."""
        offset, length = self._used, len(copy)
        self._used += padded(length)
        if copy.ctypes.data != self._memory[offset:].ctypes.data:
            np.copyto(self._memory[offset : offset + length], copy)
        self._memory[offset + length : self._used] = 0
        checksums = fast_checksums()(self._memory[offset : self._used].data, BLOCK_BYTES)
        self._placed.append(PlacedSection(section=section, offset=offset, digest=found, checksums=checksums))


def _pages(size_bytes: int) -> NDArray[np.uint8]:
    """Memory that begins with a page, in huge pages where the system has them.

    Measured: direct writes of a GiB, 32 MiB at a time, take 0.5 s from small pages and 0.25 s from huge ones.
    """
    mapped = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE)
    memory: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE_BYTES
    return memory[start : start + size_bytes]


def _in_memory(section: Section, place: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Where the processor reads a section from: its own place, or that of its copy if it lies on a device."""
    if section.data.is_cpu:
        own: NDArray[np.uint8] = section.data.numpy()
        return own
    torch.from_numpy(place).copy_(section.data)
    return place
