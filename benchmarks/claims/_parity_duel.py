"""Rivals that run at the same time and train in turns, a slice of time each: what disturbs one disturbs all."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.claims import _cluster_job as job
from benchmarks.claims._cluster_clock import children, read_stamps
from benchmarks.claims._cluster_job import JobPlan
from benchmarks.claims._parity_job import Gate
from benchmarks.claims._parity_rivals import ENCODED, WHOLE

_PATIENCE_S = 180.0
_SETTLES_S = 0.1  # of a slice: what was pulled before it is used up, and caches are warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How long rivals train.

    Args:
        rounds: Slices of each.
        slice_s: How long each takes.
    """

    rounds: int
    slice_s: float


@dataclass(slots=True)
class Rival:
    """A job of its own, and what it did in its slices."""

    name: str
    plan: JobPlan
    process: subprocess.Popen[bytes]
    gate: Gate
    workers: int
    rates: list[float] = field(default_factory=list)  # steps a second of all workers, of each slice
    cpu_s: float = 0.0  # of servers, in all slices
    steps: int = 0  # in all slices

    @property
    def server_cpu_s(self) -> float:
        """Of all servers together, for a step."""
        return self.cpu_s / max(self.steps, 1)

    def train(self, slice_s: float) -> None:
        """One slice."""
        before, cpu_s, began_s = self._stamps(), self._cpu_s(), time.time()
        self.gate.set(is_open=True)
        time.sleep(slice_s)
        self.gate.set(is_open=False)
        time.sleep(_SETTLES_S / 2)  # what is under way ends, and counts
        after = self._stamps()
        counted = [[each for each in found if each > began_s + _SETTLES_S] for found in after]
        self.rates.append(sum((len(each) - 1) / (each[-1] - each[0]) for each in counted if len(each) > 1))
        self.cpu_s += self._cpu_s() - cpu_s
        self.steps += sum(map(len, after)) - sum(map(len, before))

    def await_steps(self, steps: int) -> None:
        """Until every worker has done so many, and every parity is encoded."""
        end_s = time.monotonic() + _PATIENCE_S
        while any(len(each) < steps for each in self._stamps()) or not self._is_protected:
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"the job with {self.name} does not train")
            time.sleep(0.02)

    @property
    def _is_protected(self) -> bool:
        return self.name not in ENCODED or Path(self.plan.folder, WHOLE).exists()

    def _stamps(self) -> list[list[float]]:
        return [read_stamps(Path(self.plan.folder), index) for index in range(self.workers)]

    def _cpu_s(self) -> float:
        found = children(self.process.pid).items()
        return sum(seconds for name, (_, seconds) in found if name.startswith("server-"))


def duel(plan: JobPlan, names: Sequence[str], turns: Turns, *, servers: int, workers: int) -> dict[str, Rival]:
    """All rivals in turns, there and back again; the first one is what others are compared with."""
    with ExitStack() as stack:
        rivals = [stack.enter_context(_running(plan, name, servers, workers)) for name in names]
        for rival in rivals:
            rival.gate.set(is_open=True)
            rival.await_steps(plan.warm_up)
            rival.gate.set(is_open=False)
        for number in range(turns.rounds):
            for rival in rivals[:: 1 if number % 2 else -1]:
                rival.train(turns.slice_s)
        return {rival.name: rival for rival in rivals}


def overheads(rival: Rival, base: Rival) -> list[float]:
    """How much longer a step takes than without protection, for each round."""
    return [without / rate - 1 for rate, without in zip(rival.rates, base.rates, strict=True)]


def overhead(rival: Rival, base: Rival) -> float:
    """The median."""
    return statistics.median(overheads(rival, base))


@contextmanager
def _running(plan: JobPlan, name: str, servers: int, workers: int) -> Iterator[Rival]:
    with tempfile.TemporaryDirectory(prefix=f"holdfast-{name}-", ignore_cleanup_errors=True) as folder:
        planned = replace(plan, folder=folder, is_endless=True)
        path = Path(folder, "plan.json")
        planned.write(path)
        gate = Gate(Path(folder))
        command = [sys.executable, "-m", "benchmarks.claims._parity_child", name, str(servers), str(workers)]
        process = subprocess.Popen(command, env={**os.environ, job.PLAN: str(path)})
        try:
            yield Rival(name, planned, process, gate, workers)
        finally:
            Path(folder, job.END).touch()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
