"""Memory that sections of tensors are copied to, page by page as writing past the page cache needs it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Semaphore

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.format.bundle import BLOCK_BYTES, blocks_of
from holdfast.format.dcp_state import SECTION_BYTES
from holdfast.format.layout import padded
from holdfast.format.manifest import BundleRef, Place
from holdfast.integrations.dcp.sections import Section, Sections
from holdfast.integrations.dcp.stored import StoredSection
from holdfast.kernels.checksums import fast_checksums
from holdfast.kernels.digests import MOST_AT_ONCE, fast_copies

_FRAME_BYTES = MOST_AT_ONCE * SECTION_BYTES
_HUGE_PAGE_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSection:
    """A section in a frame: its SHA-256, and the checksums of its blocks."""

    section: Section
    offset: int
    digest: bytes
    checksums: Sequence[int]


class Frame:
    """The memory of one thread: filled with sections, written as a bundle, filled again.

    A section is hashed as it is copied, so that what is stored is what the digest says even if the tensor changes
    meanwhile; where the last checkpoint holds the same bytes, the copy is dropped.
    """

    def __init__(
        self,
        sections: Sections,
        turns: Semaphore,
        put: Callable[[memoryview, Sequence[PlacedSection]], BundleRef],
    ) -> None:
        self._sections = sections
        self._turns = turns
        self._put = put
        self._memory = _pages(_FRAME_BYTES)
        self._placed: list[PlacedSection] = []
        self._used = 0

    def fill(self) -> None:
        """Take sections until none is left."""
        try:
            while (taken := self._take()) or self._placed:
                if taken:
                    with self._turns:
                        self._add(taken)
                else:
                    self._write()
        except BaseException:
            self._sections.give_up()
            raise

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

    def _write(self) -> None:
        bundle = self._put(self._memory[: self._used].data, self._placed)
        block = 0
        for each in self._placed:
            length = len(each.section.data)
            place = Place(bundle=0, offset=bundle.head_bytes + each.offset, length=padded(length), block=block)
            block += blocks_of(padded(length))
            stored = StoredSection(
                start=each.section.start, length=length, digest=each.digest, bundle=bundle, place=place
            )
            self._sections.add(each.section, stored)
        self._placed, self._used = [], 0


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
