"""Memory that sections of tensors are copied to, page by page as writing past the page cache needs it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.format.bundle import BLOCK_BYTES, PAGE, blocks_of
from holdfast.format.dcp_state import SECTION_BYTES
from holdfast.format.layout import padded
from holdfast.format.manifest import BundleRef, Place
from holdfast.integrations.dcp.pages import Pages
from holdfast.integrations.dcp.sections import Section, Sections
from holdfast.integrations.dcp.stored import StoredSection
from holdfast.kernels.digests import MOST_AT_ONCE, Copied, fast_copies
from holdfast.storage import Buffer

_LINE_BYTES = 64  # of a cache line
_FRAME_BYTES = MOST_AT_ONCE * SECTION_BYTES
_HEAD_BYTES = 64 << 10  # before the body, for a head of about 500 sections: both are then written in one piece
_LARGE_BYTES = 1 << 20  # a body that is written around the page cache
PAGES = Pages(_HEAD_BYTES + _FRAME_BYTES)  # of all saves of a process


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
    meanwhile; where the last checkpoint holds the same bytes, the copy is dropped. One that must be stored whatever its
    digest is can be copied first, and the copy hashed while it is written.
    """

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._piece = PAGES.take()
        self._pages = self._piece.memory
        self._memory = self._pages[_HEAD_BYTES:]
        self._is_closed = False
        self._placed: list[PlacedSection] = []
        self._used = 0
        self._head: Future[bytes] = Future()
        self.name: str | None = None  # of the bundle

    @property
    def placed(self) -> Sequence[PlacedSection]:
        """The sections in it, in their order."""
        return self._placed

    @property
    def body(self) -> memoryview:
        """What a bundle of them has after its head; a large one ends with a page, so that no byte needs a cache."""
        end = self._used if self._used < _LARGE_BYTES else -(-self._used // PAGE) * PAGE
        self._memory[self._used : end] = 0
        return self._memory[:end].data

    @property
    def is_described(self) -> bool:
        """Whether the bundle's head is known by now."""
        return self._head.done()

    def head(self) -> bytes:
        """Wait for the bundle's head. Raises what kept its digests from being computed."""
        return self._head.result()

    def fill(self) -> bool:
        """Take sections until there is no room for more or none is left; whether any is to be written."""
        while taken := self._take():
            self._add(taken)
        return bool(self._placed)

    def copy(self) -> bool:
        """Take sections in whose place the last checkpoint has nothing, and copy them; whether there are any.

        ``hash`` and ``describe`` are to be called after it, or ``give_up``.
        """
        taken = _lines_first(self._sections.take(len(self._memory), MOST_AT_ONCE, only_new=True))
        for section, copy in zip(taken, self._places(taken), strict=True):
            source = _in_memory(section, copy)
            if source is not copy:
                np.copyto(copy, source)
            self._memory[self._used + len(copy) : self._used + padded(len(copy))] = 0
            self._place(section, b"", [0] * blocks_of(padded(len(copy))))
        return bool(taken)

    def hash(self) -> None:
        """Find the digests and checksums of what was copied."""
        copies = [self._memory[each.offset : each.offset + len(each.section.data)] for each in self._placed]
        self._placed = [
            replace(each, digest=found.digest, checksums=_padded_checksums(found, len(copy)))
            for each, copy, found in zip(self._placed, copies, fast_copies()(copies, copies, BLOCK_BYTES), strict=True)
        ]

    def give_up(self, error: BaseException) -> None:
        """Tell who waits for the head that there will be none."""
        self._head.set_exception(error)

    def whole(self) -> list[Buffer]:
        """The bundle: its head and the body, in one piece unless the head is too long for the room before the body."""
        head = self.head()
        if len(head) > _HEAD_BYTES:
            return [head, self.body]
        start = _HEAD_BYTES - len(head)
        self._pages[start:_HEAD_BYTES] = np.frombuffer(head, np.uint8)
        return [self._pages[start : _HEAD_BYTES + len(self.body)].data]

    def describe(self, bundle: BundleRef, head: bytes) -> None:
        """Tell where the sections will be, and let the bundle begin with this head."""
        block = 0
        for each in self._placed:
            length = len(each.section.data)
            place = Place(bundle=0, offset=bundle.head_bytes + each.offset, length=padded(length), block=block)
            block += blocks_of(padded(length))
            stored = StoredSection(
                start=each.section.start, length=length, digest=each.digest, bundle=bundle, place=place
            )
            self._sections.add(each.section, stored)
        self._head.set_result(head)

    def clear(self) -> None:
        """Make room for others, once nobody computes digests of what is there."""
        with suppress(BaseException):  # who computes them tells
            self.head()
        self._placed, self._used, self._head, self.name = [], 0, Future(), None

    def close(self) -> None:
        """Give the memory back, once; the frame cannot be used any more."""
        if not self._is_closed:
            self._is_closed = True
            PAGES.give_back(self._piece)

    def _take(self) -> list[Section]:
        """As many sections as are hashed side by side; none when the frame is more than half full.

        What then fits would be too few.
        """
        room_bytes = len(self._memory) - self._used
        if room_bytes < len(self._memory) // 2:
            return []
        return _lines_first(self._sections.take(room_bytes, MOST_AT_ONCE))

    def _places(self, taken: Sequence[Section]) -> list[NDArray[np.uint8]]:
        """Where their copies go, one after another."""
        ends = np.cumsum([self._used, *(padded(len(each.data)) for each in taken)])
        return [self._memory[end : end + len(each.data)] for end, each in zip(ends[:-1], taken, strict=True)]

    def _add(self, taken: Sequence[Section]) -> None:
        copies = self._places(taken)
        sources = [_in_memory(each, copy) for each, copy in zip(taken, copies, strict=True)]
        found = fast_copies()(sources, copies, BLOCK_BYTES)
        for section, copy, each in zip(taken, copies, found, strict=True):
            known = section.known
            if known is not None and (known.length, known.digest) == (len(copy), each.digest):
                self._sections.add(section, known)
            else:
                self._keep(section, copy, each)

    def _keep(self, section: Section, copy: NDArray[np.uint8], found: Copied) -> None:
        """In the first free place, which is where it is unless one before it was dropped."""
        offset, length = self._used, len(copy)
        if copy.ctypes.data != self._memory[offset:].ctypes.data:
            np.copyto(self._memory[offset : offset + length], copy)
        self._memory[offset + length : offset + padded(length)] = 0
        self._place(section, found.digest, _padded_checksums(found, length))

    def _place(self, section: Section, found: bytes, checksums: Sequence[int]) -> None:
        """Note that a section is in the first free place."""
        self._placed.append(PlacedSection(section=section, offset=self._used, digest=found, checksums=checksums))
        self._used += padded(len(section.data))


def _lines_first(taken: list[Section]) -> list[Section]:
    """In an order in which most begin with a cache line: such copies go past the caches."""
    return sorted(taken, key=lambda each: len(each.data) % _LINE_BYTES != 0)


def _padded_checksums(copied: Copied, length: int) -> list[int]:
    """Of a copy and the zeros after it, which are in its last block."""
    *others, last = copied.checksums
    return [*others, zlib.crc32(bytes(padded(length) - length), last)]


def _in_memory(section: Section, place: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Where the processor reads a section from: its own place, or that of its copy if it lies on a device."""
    if section.data.is_cpu:
        own: NDArray[np.uint8] = section.data.numpy()
        return own
    torch.from_numpy(place).copy_(section.data)
    return place
