"""DLRM with 26 small tables, as a job trains it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Subset

import holdfast as hf
from benchmarks.data.schema import Batch
from holdfast.cluster.train.loop import TrainingLoop
from tests.cluster.processes import programs
from tests.cluster.processes.twin import Recipe
from tests.cluster.train.tiny_worker import ON_SERVERS, Samples, build_dlrm, loss_of

BATCH = 32


def loader_of(index: int, count: int) -> DataLoader[Batch]:
    return DataLoader(Subset(Samples(20 * BATCH), range(index, 20 * BATCH, count)), batch_size=BATCH // count)


def take_step(worker: TrainingLoop, batch: Any) -> None:
    loss = loss_of(worker.model, batch)
    loss.backward()
    worker.step(loss=loss)


def train(worker: hf.Worker) -> None:
    programs.pass_gate(worker, loader_of(worker.index, worker.count), take_step)


def recipe(**options: Any) -> Recipe:
    return Recipe(model=build_dlrm, tables=ON_SERVERS, loader=loader_of, take_step=take_step, **options)


JOB: dict[str, Any] = {"model": build_dlrm, "train": train, "tables": ON_SERVERS, "synchronous": True}
