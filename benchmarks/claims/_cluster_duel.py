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
from itertools import pairwise
from pathlib import Path

from benchmarks.claims import _cluster_job
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
    """

    protection: str
    workers: int = 1


@dataclass(slots=True)
class Result:
    """What a rival did in its slices."""

    rates: list[float] = field(default_factory=list)  # steps a second of all workers, of each slice
    firsts: list[int] = field(default_factory=list)  # the number of the first slice after each start
    cpu_s: float = 0.0  # of servers, in all slices
    steps: int = 0  # in all slices

    @property
    def server_cpu_s(self) -> float:
        """Of all servers together, for a step."""
        return self.cpu_s / max(self.steps, 1)


@dataclass(slots=True)
class _Job:
    """A rival's processes."""

    rival: Rival
    plan: JobPlan
    process: subprocess.Popen[bytes]
    gate: Gate

    def train(self, slice_s: float, result: Result) -> None:
        """One slice."""
        before, cpu_s, began_s = self._stamps(), self._cpu_s(), time.time()
        self.gate.set(is_open=True)
        time.sleep(slice_s)
        self.gate.set(is_open=False)
        time.sleep(_SETTLES_S / 2)  # what is under way ends, and counts
        after = self._stamps()
        counted = [[each for each in found if each > began_s + _SETTLES_S] for found in after]
        result.rates.append(sum((len(each) - 1) / (each[-1] - each[0]) for each in counted if len(each) > 1))
        result.cpu_s += self._cpu_s() - cpu_s
        result.steps += sum(map(len, after)) - sum(map(len, before))

    def await_steps(self, steps: int) -> None:
        """Until every worker has done so many, and every parity is encoded."""
        end_s = time.monotonic() + _PATIENCE_S
        while any(len(each) < steps for each in self._stamps()) or not self._is_protected:
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"the job with {self.rival.protection} does not train")
            time.sleep(0.02)

    def end(self) -> None:
        """Let it end."""
        Path(self.plan.folder, _cluster_job.END).touch()

    @property
    def _is_protected(self) -> bool:
        return self.rival.protection not in ENCODED or Path(self.plan.folder, WHOLE).exists()

    def _stamps(self) -> list[list[float]]:
        return [read_stamps(Path(self.plan.folder), index) for index in range(self.rival.workers)]

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
        rates = {name: [round(rate, 2) for rate in each.rates[each.firsts[-1] :]] for name, each in results.items()}
        print(f"start {start + 1}: {now_s - started_s:.1f} s, steps a second {rates}", file=sys.stderr, flush=True)
        if turns.most_s is not None and start and now_s - began_s + (now_s - started_s) > turns.most_s:
            break
    return results


def _train_once(
    plan: JobPlan, rivals: Mapping[str, Rival], turns: Turns, results: Mapping[str, Result], *, servers: int
) -> None:
    """Start all rivals, and let each have its slices."""
    for result in results.values():
        result.firsts.append(len(result.rates))
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


def overheads(rival: Result, base: Result) -> list[float]:
    """How much longer a step takes than the base's, for each round."""
    return [without / rate - 1 for rate, without in zip(rival.rates, base.rates, strict=True)]


def overheads_of_starts(rival: Result, base: Result) -> list[float]:
    """The median of each start's rounds: rounds of one start share what its processes have in common."""
    found = overheads(rival, base)
    return [statistics.median(found[first:last]) for first, last in pairwise([*rival.firsts, len(found)])]


def overhead(rival: Result, base: Result) -> float:
    """The mean over starts."""
    return statistics.fmean(overheads_of_starts(rival, base))


def standard_error(found: Sequence[float]) -> float:
    """Of the mean of what starts found; infinite where there is only one."""
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.inf


def spread(found: Sequence[float]) -> float:
    """Between the lower quartile of what was found and the upper one."""
    lower, _, upper = statistics.quantiles(found, n=4)
    return upper - lower


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
