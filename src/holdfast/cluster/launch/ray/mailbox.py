"""What Ray's threads report to ours: a queue with a descriptor to wait for."""

from __future__ import annotations

import os
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Anyone may post; one thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[T] = []
        self._event: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def post(self, item: T) -> None:
        """Add something; no-op once closed."""
        with self._lock:
            if self._event is not None:
                self._items.append(item)
                os.eventfd_write(self._event, 1)

    def take(self) -> list[T]:
        """Everything that was posted since the last time."""
        with self._lock:
            items, self._items = self._items, []
            if items and self._event is not None:
                os.eventfd_read(self._event)
            return items

    def fileno(self) -> int:
        """Readable while there is something to take; -1 once closed."""
        return -1 if self._event is None else self._event

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is taken in."""
        return self._event is None

    def close(self) -> None:
        """Take nothing more in."""
        with self._lock:
            if self._event is not None:
                os.close(self._event)
            self._event, self._items = None, []
