"""The job that the cluster's benchmarks run: what a worker does, and what it writes down about it.

Functions travel to other processes by name, without arguments: the plan stands in a file that a variable names.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.data.schema import KAGGLE_CARDINALITIES, Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from holdfast.cluster.worker.worker import Worker

PLAN = "HOLDFAST_BENCHMARK_PLAN"  # a file
MLP = (512, 256, 64)
SEED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What to train."""

    folder: str  # for results
    rows: int  # of all tables, about
    dim: int
    batch_size: int
    warm_up: int  # steps before the clock
    steps: int  # on the clock
    batches: int = 16  # made before, taken in turns
    bottom: tuple[int, ...] = MLP
    top: tuple[int, ...] = (512, 256)
    threads: int = 1
    stamps: bool = False  # keep the time of every step

    @property
    def device(self) -> str:
        """Where workers compute."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    def write(self, path: Path) -> None:
        """For other processes."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls) -> JobPlan:
        """The one that the variable names."""
        body = json.loads(Path(os.environ[PLAN]).read_text())
        return cls(**{**body, "bottom": tuple(body["bottom"]), "top": tuple(body["top"])})


class Batches:
    """The same few batches in turns: a loader whose place is a number."""

    def __init__(self, plan: JobPlan, worker: int, count: int) -> None:
        stream = ClickStream(SEED, plan.rows / sum(KAGGLE_CARDINALITIES))
        numbers = [worker + count * number for number in range(plan.batches)]
        self._made = [_moved(stream.batch(number, plan.batch_size), plan.device) for number in numbers]
        self._count = plan.warm_up + plan.steps
        self._next = 0

    def __iter__(self) -> Iterator[Batch]:
        while self._next < self._count:
            self._next += 1
            yield self._made[self._next % len(self._made)]
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]


def build_model() -> nn.Module:
    """A DLRM without tables of its own."""
    plan = JobPlan.read()
    stream = ClickStream(SEED, plan.rows / sum(KAGGLE_CARDINALITIES))
    with torch.device(plan.device):
        return DLRM(stream.cardinalities, plan.dim, bottom=plan.bottom, top=plan.top, on_servers=True)


def train(worker: Worker) -> None:
    """Train, and write down how long it took from the end of the warm-up on."""
    plan = JobPlan.read()
    torch.set_num_threads(plan.threads)
    loader = Batches(plan, worker.index, worker.count)
    clock = Clock(plan, worker.index)
    for batch in worker.batches(loader):
        train_step(worker, batch)
        clock.tick(worker.steps)
    clock.write()


def train_step(worker: Worker, batch: Batch) -> None:
    """One."""
    logits = worker.model(batch.dense, batch.ids)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
    loss.backward()
    worker.step()


class Clock:
    """Times of steps, and what processors did meanwhile."""

    def __init__(self, plan: JobPlan, index: int) -> None:
        self._plan = plan
        self._file = Path(plan.folder) / f"worker-{index}.json"
        self._stamps: list[float] = []
        self._began: dict[str, float] | None = None
        self._began_s = 0.0
        self._first = 0

    def tick(self, steps: int) -> None:
        """A step is done."""
        if self._plan.stamps:
            self._stamps.append(time.time())
            if len(self._stamps) % 20 == 0:
                self.write()
        if steps == self._plan.warm_up:
            self._began, self._began_s, self._first = cpu_times(), time.perf_counter(), steps
        self._last = steps

    def write(self) -> None:
        """What was found, for the benchmark."""
        found: dict[str, Any] = {"stamps": self._stamps}
        if self._began is not None:
            seconds, now = time.perf_counter() - self._began_s, cpu_times()
            steps = self._last - self._first
            found |= {
                "seconds": seconds,
                "steps": steps,
                "samples_per_s": steps * self._plan.batch_size / seconds,
                "cpu_s": {name: now[name] - used for name, used in self._began.items() if name in now},
            }
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps(found))
        temporary.replace(self._file)


def cpu_times() -> dict[str, float]:
    """Seconds of processor time by process of this job: servers by their names, and this worker."""
    found = {"worker": sum(resource.getrusage(resource.RUSAGE_SELF)[:2])}
    parent = os.getppid()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "cmdline").read_bytes().split(b"\0")[-2].decode()
                fields = (path / "stat").read_text().rpartition(") ")[2].split()
            except (OSError, IndexError):
                continue
            if name.startswith("server-") and int(fields[1]) == parent:
                found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _moved(batch: Batch, device: str) -> Batch:
    return Batch(*(each.to(device) for each in batch))
