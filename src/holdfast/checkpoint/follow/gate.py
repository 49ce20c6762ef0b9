"""The gate between batches being served and an update of the weights they read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import RunError


class Gate:
    """Admits many batches at a time, and an update only while there is none.

    A waiting update holds new batches back, so it gets its turn under any load: it waits for running batches, never for
    later ones. A thread that is already inside may enter again.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._waiting = 0  # updates
        self._is_updating = False
        self._own = threading.local()  # how often this thread is inside

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While the block runs, no update is applied."""
        self._enter()
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def excluding(self) -> Iterator[None]:
        """While the block runs, nothing is served."""
        if self._depth:
            raise RunError("an update cannot be applied inside serving(): it would wait for its own batch forever")
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._inside and not self._is_updating)
                self._is_updating = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._is_updating = False
                self._changed.notify_all()

    @property
    def _depth(self) -> int:
        return getattr(self._own, "depth", 0)

    def _enter(self) -> None:
        with self._changed:
            if not self._depth:
                self._changed.wait_for(lambda: not self._waiting and not self._is_updating)
            self._inside += 1
            self._own.depth = self._depth + 1

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._own.depth -= 1
            self._changed.notify_all()
