"""The job of parity's benchmark: a cluster that trains while its gate is open, and stands still while others do."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.claims._cluster_job import END, Batches, JobPlan, train_loop
from benchmarks.data.schema import Batch
from holdfast.cluster.worker.worker import Worker

_GATE = "gate"  # a file of one byte, in the job's folder
_LOOK_S = 0.0005


class Gate:
    """Lets the workers of one job train, or makes them wait: a byte that processes share.

    Args:
        folder: Of the job.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / _GATE
        if not path.exists():
            path.write_bytes(b"\0")
        with path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)

    @property
    def is_open(self) -> bool:
        """Whether workers may go on."""
        return self._byte[0] != 0

    def set(self, *, is_open: bool) -> None:
        """Open or close it."""
        self._byte[0] = is_open


class GatedBatches(Batches):
    """Batches that come while the gate is open."""

    def __init__(self, plan: JobPlan, worker: int, count: int) -> None:
        super().__init__(plan, worker, count)
        self._gate = Gate(Path(plan.folder))
        self._over = Path(plan.folder, END)

    def __iter__(self) -> Iterator[Batch]:
        for batch in super().__iter__():
            while not self._gate.is_open and not self._over.exists():
                time.sleep(_LOOK_S)
            yield batch


def train(worker: Worker) -> None:
    """Train whenever the gate is open, and write down when each step was done."""
    plan = JobPlan.read()
    torch.set_num_threads(plan.threads)
    train_loop(worker, plan, GatedBatches(plan, worker.index, worker.count))
