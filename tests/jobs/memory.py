"""How much more memory a process had at one time than before."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"


def peak_above_before(act: Callable[[], T]) -> tuple[T, int]:
    """What ``act`` returns, and the most bytes of this process in memory meanwhile beyond those before it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else what was freed before would be there for ``act`` to use, and not be seen
    _CLEAR.write_text(_CLEAR_PEAK)
    before = _status_bytes("VmRSS")
    found = act()
    return found, _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
