"""What the memory that saves are copied to costs in huge pages, beside the same memory in small ones.

To take it, to map it in another process, and to hear of a death: a killed process ends when its memory is unmapped.
Both kinds take turns; figures are medians.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Report, Table
from holdfast.checkpoint.wire import shared_pages
from holdfast.checkpoint.wire.shared_pages import SharedPages

_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    size_bytes: int
    rounds: int


PLANS = {
    "tiny": Plan(size_bytes=8 << 20, rounds=1),
    "small": Plan(size_bytes=1 << 30, rounds=5),
    "full": Plan(size_bytes=4 << 30, rounds=9),
}


class Kind(NamedTuple):
    """One way to take memory and to map it."""

    reserve: Callable[[int, int], None]
    map: Callable[[int, int], object]


KINDS = {
    "huge": Kind(shared_pages.reserve, SharedPages),
    "small": Kind(
        lambda fd, size: os.posix_fallocate(fd, 0, size),
        lambda fd, size: mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE),
    ),
}


class Taken(NamedTuple):
    """What one buffer took, in seconds."""

    reserve_s: float
    map_s: float
    death_heard_s: float
    huge_share: float  # of it, in huge pages


def run(scale: str) -> Report:
    """Both kinds in turns."""
    plan = PLANS[scale]
    rounds = [{name: _measure(kind, plan.size_bytes) for name, kind in KINDS.items()} for _ in range(plan.rounds)]
    found = {name: Taken(*map(statistics.median, zip(*(each[name] for each in rounds), strict=True))) for name in KINDS}
    figures = {f"buffer_{key}_{name}": value for name in KINDS for key, value in found[name]._asdict().items()}
    rows = [(name, *found[name]) for name in KINDS]
    caption = f"{plan.size_bytes / 2**20:.0f} MiB, medians of {plan.rounds} rounds"
    headers = ("pages", "take, s", "map, s", "hear of a death, s", "share in huge pages")
    return Report(
        title="Memory that processes share",
        tables=[Table(caption=caption, headers=headers, rows=rows)],
        figures={**figures, "buffer_bytes": plan.size_bytes},
    )


def _measure(kind: Kind, size_bytes: int) -> Taken:
    fd = os.memfd_create("benchmark")
    try:
        began_s = time.perf_counter()
        kind.reserve(fd, size_bytes)
        reserved_s = time.perf_counter()
        mapped = kind.map(fd, size_bytes)
        map_s = time.perf_counter() - reserved_s
        share = _in_huge_pages() / size_bytes
        del mapped
        return Taken(reserved_s - began_s, map_s, _death_s(kind, fd, size_bytes), share)
    finally:
        os.close(fd)


def _death_s(kind: Kind, fd: int, size_bytes: int) -> float:
    """From the SIGKILL of a process that maps it until that is heard of."""
    ready, tell = os.pipe()
    process = os.fork()
    if not process:
        kept = kind.map(fd, size_bytes)
        os.write(tell, b"." if kept else b"")
        signal.pause()
        os._exit(0)
    os.close(tell)
    assert os.read(ready, 1), "the other process could not map it"
    os.close(ready)
    pidfd = os.pidfd_open(process)
    killed_s = time.perf_counter()
    os.kill(process, signal.SIGKILL)
    select.select([pidfd], [], [], _PATIENCE_S)
    heard_s = time.perf_counter() - killed_s
    os.waitpid(process, 0)
    os.close(pidfd)
    return heard_s


def _in_huge_pages() -> int:
    """Bytes of shared memory that this process maps so."""
    lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("ShmemPmdMapped:"))
