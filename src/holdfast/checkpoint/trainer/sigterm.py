"""SIGTERM as a flag: the training loop checks it after each step, when the state is consistent."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class TerminationFlag:
    """Raised by the first SIGTERM; a second one acts as it did before us. Works in the main thread only."""

    def __init__(self, *, install: bool) -> None:
        self.raised = False
        self._installed = install and threading.current_thread() is threading.main_thread()
        self._previous: Any = signal.signal(signal.SIGTERM, self._on_signal) if self._installed else None

    def restore(self) -> None:
        """Restore the previous signal handler."""
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGTERM, self._previous or signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.raised:
            self.restore()
            signal.raise_signal(signal.SIGTERM)
        self.raised = True
