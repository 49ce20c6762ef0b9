"""How a benchmark ends that is told to end early: with all that it has started."""

from __future__ import annotations

import ctypes
import signal
from types import FrameType

_PDEATHSIG = 1  # prctl's number: which signal to get when whoever started this process ends


def end_at_sigterm() -> None:
    """SIGTERM leaves blocks of code as an error does, so that jobs that run within them are ended."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def end_with_parent() -> None:
    """Whoever started this process may be killed outright: then this one is told to end."""
    ctypes.CDLL(None, use_errno=True).prctl(_PDEATHSIG, signal.SIGTERM)
