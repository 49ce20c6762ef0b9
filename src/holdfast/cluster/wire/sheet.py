"""What a message is written to and read from: bytes of a header, and frames for large arrays."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.cluster.wire.malformed import MalformedFrame

Array = NDArray[Any]
MOST_FRAME_BYTES = 1 << 26  # what a stranger can make us keep until its handshake fails; larger arrays are cut


class Sheet:
    """A message on its way out."""

    __slots__ = ("frames", "head")

    def __init__(self, head: bytes) -> None:
        self.head = bytearray(head)
        self.frames: list[Array] = []

    def align(self) -> None:
        """Go on at a multiple of eight bytes."""
        self.head += bytes(-len(self.head) % 8)


class Cursor:
    """A message on its way in. Whoever reads past the end of it learns that it is malformed."""

    __slots__ = ("at", "frames", "head", "taken")

    def __init__(self, head: bytearray, frames: Sequence[memoryview], at: int) -> None:
        self.head = head
        self.frames = frames
        self.at = at
        self.taken = 0  # of the frames

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        """The next numbers."""
        at = self.at
        self.at = at + form.size
        try:
            return form.unpack_from(self.head, at)
        except struct.error:
            raise self._cut() from None

    def piece(self, size: int) -> bytearray:
        """The next bytes."""
        at = self.at
        self.at = at + size
        if self.at > len(self.head):
            raise self._cut()
        return self.head[at : self.at]

    def array(self, dtype: np.dtype[Any], count: int) -> Array:
        """An array in the header, at a multiple of eight bytes: a view that may be written to."""
        at = self.at + -self.at % 8
        self.at = at + count * dtype.itemsize
        if self.at > len(self.head):
            raise self._cut()
        return np.frombuffer(self.head, dtype, count, at) if count else np.empty(0, dtype)

    def frame(self) -> memoryview:
        """The next frame."""
        if self.taken == len(self.frames):
            raise MalformedFrame(f"the header needs more than the {len(self.frames)} array frames that came")
        self.taken += 1
        return self.frames[self.taken - 1]

    def end(self) -> None:
        """Nothing may be left."""
        if self.at != len(self.head) or self.taken != len(self.frames):
            left, frames = len(self.head) - self.at, len(self.frames) - self.taken
            raise MalformedFrame(f"{left} bytes of the header and {frames} array frames are left over")

    def _cut(self) -> MalformedFrame:
        return MalformedFrame(f"the header ends after {len(self.head)} bytes, in the middle of a field")
