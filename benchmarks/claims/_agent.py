"""What an agent's process does, as the system sees it. Where there is no /proc, nothing is known of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

_LOOK_EVERY_S = 0.01
_QUIET_S = 0.05  # an agent that took no CPU time for so long has nothing left to do


def bytes_written(pid: int | None) -> int:
    """Bytes it has written to files so far; 0 where unknown."""
    for line in _read(pid, "io").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def memory_bytes(pid: int | None) -> int:
    """Main memory that it holds; 0 where unknown."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    return 0


def descriptors(pid: int | None) -> int:
    """Files and sockets that it has open; 0 where unknown."""
    folder = Path(f"/proc/{pid}/fd")
    return sum(1 for _ in folder.iterdir()) if folder.exists() else 0


def cpu_s(pid: int | None) -> float:
    """User and system time so far; 0 where unknown."""
    return sum(map(int, _cpu_time(pid).split())) / os.sysconf("SC_CLK_TCK")


def await_quiet(pid: int | None) -> None:
    """Until it does nothing any more."""
    since_s, before = time.monotonic(), ""
    while time.monotonic() < since_s + _QUIET_S:
        now = _cpu_time(pid) + _read(pid, "io")
        if now != before:
            since_s, before = time.monotonic(), now
        time.sleep(_LOOK_EVERY_S)


def _cpu_time(pid: int | None) -> str:
    """User and system time, the fields 14 and 15 of proc(5), counted after the name, which may hold anything."""
    return " ".join(_read(pid, "stat").rpartition(")")[2].split()[11:13])


def _read(pid: int | None, name: str) -> str:
    path = Path(f"/proc/{pid}/{name}")
    return path.read_text(encoding="utf-8") if path.exists() else ""
