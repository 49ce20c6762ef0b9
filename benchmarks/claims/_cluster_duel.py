"""Rivals that run at the same time and train in turns, a slice of time each: what disturbs one disturbs all."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.claims import _cluster_job
from benchmarks.claims._cluster_clock import Tick, children, read_ticks
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
        starts: How often all rivals are started anew, at most: two processes of the same program differ by some
            percent, for as long as they live, so that many starts of few rounds tell more than few of many.
        most_s: After the second, no start begins that would not end within this time. None: whatever it takes.
    """

    rounds: int
    slice_s: float
    starts: int = 1
    most_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Who takes part.

    Args:
        protection: What protects its rows, by the name in ``_parity_rivals``.
        workers: How many.
        burnt_cores: What other processes use beside it, as many as it has servers, on the same cores.
    """

    protection: str
    workers: int = 1
    burnt_cores: float = 0.0


@dataclass(slots=True)
class Result:
    """What a rival did in its slices."""

    starts: list[list[float]] = field(default_factory=list)  # steps a second of all workers: of each start, its slices
    cpu_s: float = 0.0  # of servers, in all slices
    worker_cpu_s: float = 0.0  # of the workers' own threads
    waited_s: float = 0.0  # by workers, for servers
    steps: int = 0  # in all slices
    timed_steps: int = 0  # of these, by the workers' clocks: those behind the beginning of a slice

    @property
    def rate(self) -> float:
        """Steps a second: the median over all slices."""
        return statistics.median(rate for each in self.starts for rate in each)

    @property
    def server_cpu_s(self) -> float:
        """Of all servers together, for a step."""
        return self.cpu_s / max(self.steps, 1)

    @property
    def step_cpu_s(self) -> float:
        """Of a worker's thread, for a step."""
        return self.worker_cpu_s / max(self.timed_steps, 1)

    @property
    def step_wait_s(self) -> float:
        """That a worker waits for servers, in a step."""
        return self.waited_s / max(self.timed_steps, 1)


@dataclass(slots=True)
class _Job:
    """A rival's processes."""

    rival: Rival
    plan: JobPlan
    process: subprocess.Popen[bytes]
    gate: Gate

    def train(self, slice_s: float, result: Result) -> None:
        """One slice."""
        cpu_s, began_s = self._cpu_s(), time.time()
        self.gate.set(is_open=True)
        time.sleep(slice_s)
        self.gate.set(is_open=False)
        time.sleep(_SETTLES_S / 2)  # what is under way ends, and counts
        result.cpu_s += self._cpu_s() - cpu_s
        rate = 0.0
        for ticks in self._ticks():
            result.steps += sum(each.at_s > began_s for each in ticks)
            counted = [each for each in ticks if each.at_s > began_s + _SETTLES_S]
            if len(counted) > 1:
                first, last = counted[0], counted[-1]
                rate += (len(counted) - 1) / (last.at_s - first.at_s)
                result.worker_cpu_s += last.cpu_s - first.cpu_s
                result.waited_s += last.waited_s - first.waited_s
                result.timed_steps += len(counted) - 1
        result.starts[-1].append(rate)

    def await_steps(self, steps: int) -> None:
        """Until every worker has done so many, and every parity is encoded."""
        end_s = time.monotonic() + _PATIENCE_S
        while any(len(each) < steps for each in self._ticks()) or not self._is_protected:
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"the job with {self.rival.protection} does not train")
            time.sleep(0.02)

    def end(self) -> None:
        """Let it end."""
        Path(self.plan.folder, _cluster_job.END).touch()

    @property
    def _is_protected(self) -> bool:
        return self.rival.protection not in ENCODED or Path(self.plan.folder, WHOLE).exists()

    def _ticks(self) -> list[list[Tick]]:
        return [read_ticks(Path(self.plan.folder), index) for index in range(self.rival.workers)]

    def _cpu_s(self) -> float:
        found = children(self.process.pid).items()
        return sum(seconds for name, (_, seconds) in found if name.startswith("server-"))


def duel(plan: JobPlan, rivals: Mapping[str, Rival], turns: Turns, *, servers: int) -> dict[str, Result]:
    """All rivals in turns, there and back again; results by the rivals' names."""
    results = {name: Result() for name in rivals}
    began_s = time.monotonic()
    for start in range(turns.starts):
        started_s = time.monotonic()
        _train_once(plan, rivals, turns, results, servers=servers)
        now_s = time.monotonic()
        rates = {name: [round(rate, 2) for rate in each.starts[-1]] for name, each in results.items()}
        print(f"start {start + 1}: {now_s - started_s:.1f} s, steps a second {rates}", file=sys.stderr, flush=True)
        if turns.most_s is not None and start and now_s - began_s + (now_s - started_s) > turns.most_s:
            break
    return results


def _train_once(
    plan: JobPlan, rivals: Mapping[str, Rival], turns: Turns, results: Mapping[str, Result], *, servers: int
) -> None:
    """Start all rivals, and let each have its slices."""
    for result in results.values():
        result.starts.append([])
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(_running(plan, rival, servers)) for name, rival in rivals.items()}
        stack.callback(_end_all, list(jobs.values()))  # before each is waited for
        for job in jobs.values():
            job.gate.set(is_open=True)
            job.await_steps(plan.warm_up)
            job.gate.set(is_open=False)
        for number in range(turns.rounds):
            for name in list(jobs)[:: 1 if number % 2 else -1]:
                jobs[name].train(turns.slice_s, results[name])


def _end_all(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How much faster one rival was than another: of each start, the median over its rounds.

    Starts are what can be compared: two processes of the same program differ by some percent for as long as they live,
    so that more rounds of one start say no more about the program.
    """

    of_starts: Sequence[float]

    @classmethod
    def of(cls, rival: Result, base: Result) -> Ratio:
        """The rival's steps a second relative to the base's, in the same rounds."""
        starts = zip(rival.starts, base.starts, strict=True)
        return cls(of_starts=[statistics.median(x / y for x, y in zip(*rates, strict=True)) for rates in starts])

    @property
    def median(self) -> float:
        """Over starts."""
        return statistics.median(self.of_starts)

    @property
    def standard_error(self) -> float:
        """Of the mean over starts; 0 where there is one only."""
        count = len(self.of_starts)
        return statistics.stdev(self.of_starts) / math.sqrt(count) if count > 1 else 0.0


def overhead(rival: Result, base: Result) -> float:
    """How much longer a step takes than the base's."""
    return 1 / Ratio.of(rival, base).median - 1


def scaling_figures(one: Result, two: Result) -> dict[str, float]:
    """What a second worker gains."""
    ratio = Ratio.of(two, one)
    return {"scaling_2_workers": ratio.median, "scaling_2_workers_standard_error": ratio.standard_error}


@contextmanager
def _running(plan: JobPlan, rival: Rival, servers: int) -> Iterator[_Job]:
    with tempfile.TemporaryDirectory(prefix="holdfast-duel-", ignore_cleanup_errors=True) as folder:
        planned = replace(plan, folder=folder, is_endless=True)
        path = Path(folder, "plan.json")
        planned.write(path)
        gate = Gate(Path(folder))
        command = [sys.executable, "-m", "benchmarks.claims._parity_child", rival.protection]
        command += [str(servers), str(rival.workers)]
        process = subprocess.Popen(command, env={**os.environ, _cluster_job.PLAN: str(path)})
        burners = [_burner(planned, rival, servers) for _ in range(servers)] if rival.burnt_cores else []
        job = _Job(rival, planned, process, gate)
        try:
            yield job
        finally:
            job.end()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                for burner in burners:
                    burner.wait(_PATIENCE_S)


def _burner(plan: JobPlan, rival: Rival, servers: int) -> subprocess.Popen[bytes]:
    share = str(rival.burnt_cores / servers)
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.claims._burner", plan.folder, share])
    if plan.cores is not None:  # those that workers have to themselves
        os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[rival.workers * plan.cores :])
    return process
