"""The job that the cluster's benchmarks run: what a worker does, and what it writes down about it.

Functions travel to other processes by name, without arguments: the plan stands in a file that a variable names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.claims._cluster_clock import Clock
from benchmarks.claims._cluster_spans import Spans, trace
from benchmarks.data.schema import KAGGLE_CARDINALITIES, Batch, scaled_cardinalities
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM, LogisticRegression
from holdfast.cluster.train.loop import TrainingLoop
from holdfast.cluster.worker.worker import Worker

PLAN = "HOLDFAST_BENCHMARK_PLAN"  # a file
SEED = 5
END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What to train."""

    folder: str  # for results
    rows: int  # of all tables, about, times ``spread``
    dim: int
    batch_size: int
    warm_up: int  # steps before the clock
    steps: int  # on the clock
    spread: int = 1  # tables have this many times the rows, and as many are used
    batches: int = 32  # made before, taken in turns
    bottom: tuple[int, ...] = (512, 256, 64)
    top: tuple[int, ...] = (1024, 512)  # with these and 64 columns, 1.1 million parameters
    threads: int = max(1, (os.cpu_count() or 1) // 4)  # of a worker: servers have one each
    cores: int | None = 3 if (os.cpu_count() or 1) >= 16 else None  # that a worker has to itself
    traced: bool = False  # where a worker's time goes
    is_endless: bool = False  # train until the folder has the file END
    data: int = 4  # rows that share a parity, where there is one
    is_linear: bool = False  # a logistic regression: one number a row, and no dense part to speak of

    @property
    def device(self) -> str:
        """Where workers compute."""
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def scale(self) -> float:
        """Of Criteo Kaggle's tables."""
        return self.rows / sum(KAGGLE_CARDINALITIES)

    def write(self, path: Path) -> None:
        """For other processes."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path | None = None) -> JobPlan:
        """The one in a file; None: that the variable names."""
        body = json.loads((path or Path(os.environ[PLAN])).read_text(encoding="utf-8"))
        return cls(**{**body, "bottom": tuple(body["bottom"]), "top": tuple(body["top"])})


class Batches:
    """The same few batches in turns: a loader whose place is a number."""

    def __init__(self, plan: JobPlan, worker: int = 0, count: int = 1) -> None:
        self._made = _made(plan, worker, count)
        self._count = plan.warm_up + plan.steps
        self._end = Path(plan.folder, END) if plan.is_endless else None
        self._next = 0

    def __iter__(self) -> Iterator[Batch]:
        while not self._is_over:
            self._next += 1
            yield self._made[self._next % len(self._made)]
        self._next = 0

    @property
    def _is_over(self) -> bool:
        return self._next >= self._count if self._end is None else self._end.exists()

    def __len__(self) -> int:
        return self._count

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]


def build_model(*, on_servers: bool = True) -> nn.Module:
    """A DLRM, or what the plan says; by itself one without tables of its own."""
    plan = JobPlan.read()
    rows = [rows * plan.spread for rows in scaled_cardinalities(plan.scale)]
    with torch.device(plan.device):
        if plan.is_linear:
            return LogisticRegression(rows, on_servers=on_servers)
        return DLRM(rows, plan.dim, bottom=plan.bottom, top=plan.top, on_servers=on_servers)


def train(worker: Worker) -> None:
    """Train, and write down how long it took from the end of the warm-up on."""
    plan = JobPlan.read()
    torch.set_num_threads(plan.threads)
    train_loop(worker, plan, Batches(plan, worker.index, worker.count))


def train_loop(worker: TrainingLoop, plan: JobPlan, loader: Batches) -> None:
    """On a clock."""
    spans = Spans()
    clock = Clock(Path(plan.folder), worker.index, warm_up=plan.warm_up, batch_size=plan.batch_size)
    passes = spans.timed(compute, "forward and backward") if plan.traced else compute
    if plan.traced:
        trace(spans, worker)
    for batch in worker.batches(loader):
        passes(worker.model, batch)
        worker.step()
        if worker.steps == plan.warm_up:
            spans.clear()
        clock.tick(worker.steps, _waited_s(worker))
    clock.write(spans.seconds)


def _waited_s(worker: TrainingLoop) -> float:
    exchange: Any = worker._exchange
    return float(getattr(exchange, "waited_s", 0.0))  # one within the process waits for nobody


def compute(model: nn.Module, batch: Batch) -> None:
    """A forward and a backward pass."""
    logits = model(batch.dense, batch.ids)
    nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()


@cache  # a worker that goes back to a checkpoint stays in its process
def _made(plan: JobPlan, worker: int, count: int) -> list[Batch]:
    stream = ClickStream(SEED, plan.scale)
    numbers = [worker + count * number for number in range(plan.batches)]
    return [_prepared(stream.batch(number, plan.batch_size), plan) for number in numbers]


def _prepared(batch: Batch, plan: JobPlan) -> Batch:
    spread = batch._replace(ids=batch.ids * plan.spread)
    return Batch(*(each.to(plan.device) for each in spread))
