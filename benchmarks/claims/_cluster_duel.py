"""Rivals that run at the same time and train in turns, a slice of time each: what disturbs one disturbs all.

Cores of a machine that others use as well are not alike: one may be half as fast as its neighbour, for seconds or for
hours. So where workers have cores to themselves, these are drawn anew for each round, the same for all rivals.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from benchmarks.claims import _cluster_job
from benchmarks.claims._cluster_clock import Tick, children, read_ticks
from benchmarks.claims._cluster_job import JobPlan
from benchmarks.claims._parity_job import Gate
from benchmarks.claims._parity_rivals import ENCODED, WHOLE

_PATIENCE_S = 180.0
_SEED = 7
_SETTLES_S = 0.1  # of a slice: what was pulled before it is used up, and caches are warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """How long rivals train.

    Args:
        rounds: Slices of each, after each start.
        slice_s: How long each takes.
        starts: How often all rivals are started anew: where processes have their memory may matter.
    """

    rounds: int
    slice_s: float
    starts: int = 1


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
    burners: Sequence[subprocess.Popen[bytes]] = ()

    def move(self, cores: Sequence[int]) -> None:
        """To other cores: the first ones are the workers', the rest are everyone else's."""
        each = self.plan.cores
        if each is None:
            return
        rest = cores[self.rival.workers * each :]
        for name, (pid, _) in children(self.process.pid).items():
            worker = re.fullmatch(r"worker-(\d+)\.\d+", name)
            at = 0 if worker is None else int(worker[1]) * each
            _move(pid, rest if worker is None else cores[at : at + each])
        for burner in self.burners:
            _move(burner.pid, rest)

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
    draw = Random(_SEED)
    for start in range(turns.starts):
        started_s = time.monotonic()
        _train_once(plan, rivals, turns, results, draw, servers=servers)
        now_s = time.monotonic()
        rates = {name: [round(rate, 2) for rate in each.starts[-1]] for name, each in results.items()}
        print(f"start {start + 1}: {now_s - started_s:.1f} s, steps a second {rates}", file=sys.stderr, flush=True)
    return results


def _train_once(
    plan: JobPlan,
    rivals: Mapping[str, Rival],
    turns: Turns,
    results: Mapping[str, Result],
    draw: Random,
    *,
    servers: int,
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
        cores = sorted(os.sched_getaffinity(0))
        for number in range(turns.rounds):
            draw.shuffle(cores)
            for name in list(jobs)[:: 1 if number % 2 else -1]:
                jobs[name].move(cores)
                jobs[name].train(turns.slice_s, results[name])


def _end_all(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        job.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How much faster one rival was than another: its steps in all rounds, relative to the other's in the same."""

    rounds: Sequence[tuple[float, float]]  # steps a second, of the one and of the other

    @classmethod
    def of(cls, rival: Result, base: Result) -> Ratio:
        """The rival relative to the base."""
        starts = zip(rival.starts, base.starts, strict=True)
        return cls(rounds=[pair for start in starts for pair in zip(*start, strict=True)])

    @property
    def value(self) -> float:
        """Of the sums. A mean of ratios would be too high: a slow slice of the base counts for more than a fast one."""
        return _quotient(self.rounds)

    @property
    def standard_error(self) -> float:
        """Of the value, by leaving out each round in turn; 0 where there is one only."""
        count = len(self.rounds)
        if count < 2:
            return 0.0
        without = [_quotient([*self.rounds[:at], *self.rounds[at + 1 :]]) for at in range(count)]
        middle = statistics.fmean(without)
        return math.sqrt((count - 1) / count * math.fsum((each - middle) ** 2 for each in without))


def _quotient(rounds: Sequence[tuple[float, float]]) -> float:
    return math.fsum(one for one, _ in rounds) / math.fsum(other for _, other in rounds)


def overhead(rival: Result, base: Result) -> float:
    """How much longer a step takes than the base's."""
    return 1 / Ratio.of(rival, base).value - 1


def scaling_figures(one: Result, two: Result) -> dict[str, float]:
    """What a second worker gains."""
    ratio = Ratio.of(two, one)
    return {"scaling_2_workers": ratio.value, "scaling_2_workers_standard_error": ratio.standard_error}


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
        burners = [_burner(folder, rival.burnt_cores / servers) for _ in range(servers)] if rival.burnt_cores else []
        job = _Job(rival, planned, process, gate, burners)
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


def _burner(folder: str, share: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.claims._burner", folder, str(share)])


def _move(pid: int, cores: Sequence[int]) -> None:
    """All threads of a process."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(task.name), cores)
