"""A training of which servers are killed by its own worker, at steps that a plan names; the AUC at its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.claims._emulation_trainer import TEST_BATCH, TEST_START, Model
from benchmarks.data.schema import Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from benchmarks.training import evaluate
from holdfast.cluster.worker.worker import Worker

PLAN = "HOLDFAST_DEATHS_PLAN"  # a file


@dataclass(frozen=True, slots=True, kw_only=True)
class DeathsPlan:
    """One training."""

    result: str  # a file
    model: Model
    seed: int
    deaths: tuple[tuple[int, int], ...]  # after which step which server dies

    def write(self, path: Path) -> None:
        """For other processes."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls) -> DeathsPlan:
        """The one that the variable names."""
        body = json.loads(Path(os.environ[PLAN]).read_text())
        deaths = tuple((step, server) for step, server in body["deaths"])
        return cls(result=body["result"], model=Model(**body["model"]), seed=body["seed"], deaths=deaths)


class Stream:
    """The batches of a seed, one after another: a loader whose place is a number."""

    def __init__(self, plan: DeathsPlan) -> None:
        self._stream = ClickStream(plan.seed, plan.model.scale)
        self._model = plan.model
        self._next = 0

    def __iter__(self) -> Iterator[Batch]:
        while self._next < self._model.steps:
            self._next += 1
            yield self._stream.batch(self._next - 1, self._model.batch_size)
        self._next = 0

    def __len__(self) -> int:
        return self._model.steps

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._next = state["next"]

    def tests(self) -> list[Batch]:
        """Samples that no training sees."""
        size = self._model.test_samples
        starts = range(TEST_START, TEST_START + size, TEST_BATCH)
        return [self._stream.samples(start, min(TEST_BATCH, size)) for start in starts]


def build_model() -> nn.Module:
    """The emulation's DLRM, with its tables on servers."""
    plan = DeathsPlan.read()
    widths = (plan.model.width,)
    cardinalities = ClickStream(plan.seed, plan.model.scale).cardinalities
    return DLRM(cardinalities, plan.model.dim, bottom=widths, top=widths, seed=plan.seed, on_servers=True)


def train(worker: Worker) -> None:
    """Train, kill, and write down the AUC."""
    plan = DeathsPlan.read()
    torch.set_num_threads(1)
    stream, deaths = Stream(plan), dict(plan.deaths)
    for batch in worker.batches(stream):
        logits = worker.model(batch.dense, batch.ids)
        F.binary_cross_entropy_with_logits(logits, batch.labels).backward()
        worker.step()
        if worker.steps in deaths:
            os.kill(pid_of(deaths[worker.steps]), signal.SIGKILL)
    with worker.evaluating():
        auc = evaluate(worker.model, stream.tests())
    Path(plan.result).write_text(json.dumps({"auc": auc}))


def pid_of(server: int) -> int:
    """The process that is this server now."""
    parent = os.getppid()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "comm").read_text()
                fields = (path / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if name.startswith(f"server-{server}.") and int(fields[1]) == parent:
                return int(path.name)
    raise LookupError(f"no process of this job is server {server}")
