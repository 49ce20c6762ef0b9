"""Streams: what one member sends another, numbered, so that a frame that is missing is noticed."""

from __future__ import annotations

from itertools import count


class Outgoing:
    """The sender's end."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def number(self) -> int:
        """Of the next frame."""
        return next(self._numbers)


class Incoming:
    """The receiver's end. A gap ends the stream: what comes after it may build on what is missing."""

    def __init__(self) -> None:
        self._expected = 1
        self.is_broken = False

    def accept(self, number: int) -> bool:
        """Whether this frame is the next one."""
        if self.is_broken or number != self._expected:
            self.is_broken = True
            return False
        self._expected += 1
        return True
