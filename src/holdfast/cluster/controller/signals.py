"""Ctrl-C and SIGTERM: the first asks for a save and an end, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Catches them while it is entered, in the main thread; elsewhere it does nothing.

    Args:
        stop: Called for the first one, from the signal handler.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.caught: signal.Signals | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._catch) for each in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)  # None: Python did not install it
        os.close(self.fd)

    def drain(self) -> None:
        """Take note of what woke the loop."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = signal.Signals(number)
        self._stop()
        os.eventfd_write(self.fd, 1)
