"""Waits until descriptors can be read or written, whatever their numbers: ``select`` knows none above 1023."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Protocol


class HasDescriptor(Protocol):
    """A socket, for example."""

    def fileno(self) -> int:
        """Its descriptor."""
        ...


Descriptor = int | HasDescriptor


def wait_readable(descriptors: Iterable[Descriptor], timeout_s: float | None = None) -> set[int]:
    """Those from which something can be read, or whose other side is gone; none where time has run out."""
    return _wait(descriptors, select.POLLIN, timeout_s)


def is_writable(descriptor: Descriptor, timeout_s: float = 0.0) -> bool:
    """Whether there is room within this time, or nobody on the other side any more."""
    return bool(_wait([descriptor], select.POLLOUT, timeout_s))


def _wait(descriptors: Iterable[Descriptor], event: int, timeout_s: float | None) -> set[int]:
    poll = select.poll()
    for each in descriptors:
        poll.register(each, event)
    return {number for number, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
