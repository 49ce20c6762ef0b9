"""Runs a job of the cluster's benchmarks, on servers or in one process, and reads what its workers wrote down."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.claims import _cluster_job as job
from benchmarks.claims._cluster_clock import Times
from benchmarks.claims._cluster_job import JobPlan
from holdfast.cluster.cluster import Cluster
from holdfast.cluster.launch.local import LocalProcesses
from holdfast.cluster.worker.worker import Worker
from holdfast.policy import Adagrad, EverySteps, Ladder
from holdfast.policy.tables import Tables

LR = 0.02
ALL_TABLES = Tables(min_bytes=0)
_NEVER = EverySteps(10**9)


def on_servers(plan: JobPlan, *, servers: int, workers: int = 1, **options: Any) -> list[Times]:
    """A cluster's; the times of each worker."""
    with folder_for(plan) as planned:
        run_cluster(planned, servers=servers, workers=workers, **options)
        folder = Path(planned.folder)
        return [Times.read(folder, index, warm_up=plan.warm_up) for index in range(workers)]


def in_process(plan: JobPlan, kind: str, *, servers: int = 1) -> Times:
    """The same training in a process of its own: by ``torch``, by an ``exchange`` in it, or by calls of ``ray``."""
    with folder_for(plan) as planned:
        command = [sys.executable, "-m", "benchmarks.claims._cluster_child", kind, str(servers)]
        subprocess.run(command, check=True)
        return Times.read(Path(planned.folder), warm_up=plan.warm_up)


@contextmanager
def folder_for(plan: JobPlan) -> Iterator[JobPlan]:
    """The plan with a folder of its own, known to processes that start within."""
    with tempfile.TemporaryDirectory(prefix="holdfast-cluster-") as folder:
        planned = replace(plan, folder=folder)
        path = Path(folder, "plan.json")
        planned.write(path)
        os.environ[job.PLAN] = str(path)
        try:
            yield planned
        finally:
            del os.environ[job.PLAN]


def run_cluster(
    plan: JobPlan,
    *,
    servers: int,
    workers: int = 1,
    model: Callable[[], nn.Module] = job.build_model,
    train: Callable[[Worker], None] = job.train,
    launcher: Callable[..., LocalProcesses] = LocalProcesses,
    on_event: Callable[[Any], object] | None = None,
    **options: Any,
) -> None:
    """To its end."""
    with Cluster(
        os.path.join(plan.folder, "run"),
        model=model,
        train=train,
        servers=servers,
        workers=workers,
        optimizer=Adagrad(LR),
        tables=ALL_TABLES,
        launcher=launcher(worker_threads=plan.threads, worker_cores=plan.cores),
        on_event=on_event,
        view=False,
        **{"save": _NEVER, "ladder": Ladder.of(options.get("parity"), options.get("strategy")), **options},
    ) as cluster:
        cluster.run()
