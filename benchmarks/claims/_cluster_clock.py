"""Clock: the times of a worker's steps, and what processors did meanwhile."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Clock:
    """Writes a line for every step, so that one life of a worker after the other is kept.

    Args:
        folder: For its files.
        index: Of the worker.
        warm_up: Steps before it counts.
        batch_size: Samples of a step.
    """

    def __init__(self, folder: Path, index: int, *, warm_up: int, batch_size: int) -> None:
        self._file = folder / f"worker-{index}.json"
        self._stamps = (folder / f"stamps-{index}").open("a", encoding="utf-8", buffering=1)
        self._warm_up = warm_up
        self._batch_size = batch_size
        self._began: tuple[float, dict[str, float]] | None = None
        self._last = 0

    def tick(self, steps: int, waited_s: float = 0.0) -> None:
        """A step is done; ``waited_s``: for servers, since training began."""
        self._stamps.write(f"{time.time():.6f} {time.thread_time():.6f} {waited_s:.6f}\n")
        if steps == self._warm_up:
            self._began = time.perf_counter(), cpu_times()
        self._last = steps

    def write(self, spans: Mapping[str, float]) -> None:
        """What was found since the warm-up; nothing in a life that began after it."""
        if self._began is None:
            return
        began_s, cpu = self._began
        seconds, now, steps = time.perf_counter() - began_s, cpu_times(), self._last - self._warm_up
        found = {
            "samples_per_s": steps * self._batch_size / seconds,
            "step_s": seconds / steps,
            "cpu_s": {name: (now[name] - used) / steps for name, used in cpu.items() if name in now},
            "spans_s": {name: each / steps for name, each in spans.items()},
        }
        self._file.write_text(json.dumps(found), encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What a worker's clock has written: figures of a step, but for the stamps."""

    samples_per_s: float
    step_s: float  # the mean
    quick_s: float  # a quarter of all steps take less: what is compared, as other work on a machine disturbs it least
    cpu_s: Mapping[str, float]  # by process
    spans_s: Mapping[str, float]

    @classmethod
    def read(cls, folder: Path, index: int = 0, *, warm_up: int) -> Times:
        """Of one worker."""
        found = json.loads((folder / f"worker-{index}.json").read_text(encoding="utf-8"))
        stamps = read_stamps(folder, index)[warm_up - 1 :]
        steps = [later - sooner for sooner, later in pairwise(stamps)]
        return cls(quick_s=statistics.quantiles(steps, n=4)[0], **found)

    @property
    def server_cpu_s(self) -> float:
        """Of all servers together."""
        return sum(each for name, each in self.cpu_s.items() if name.startswith("server-"))


class Tick(NamedTuple):
    """A step was done."""

    at_s: float
    cpu_s: float  # that the worker's thread had used by then
    waited_s: float  # that it had waited for servers


def read_ticks(folder: Path, index: int = 0) -> list[Tick]:
    """The steps of a worker. A line that is being written is left out."""
    path = folder / f"stamps-{index}"
    *lines, _ = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
    return [Tick(*map(float, line.split())) for line in lines]


def read_stamps(folder: Path, index: int = 0) -> list[float]:
    """When each step of a worker was done."""
    return [each.at_s for each in read_ticks(folder, index)]


def cpu_times() -> dict[str, float]:
    """Seconds of processor time by process of this job: servers by their names, and this worker."""
    return {
        "worker": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        **{name: seconds for name, (_, seconds) in children(os.getppid()).items() if name.startswith("server-")},
    }


def children(parent: int) -> dict[str, tuple[int, float]]:
    """Processes that the launcher started, by the names it gave them: ids and seconds of processor time."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "cmdline").read_bytes().split(b"\0")[-2].decode()
                fields = (path / "stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
            except (OSError, IndexError, UnicodeDecodeError):  # it has ended
                continue
            if int(fields[1]) == parent:
                found[name] = int(path.name), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found
