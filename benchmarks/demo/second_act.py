"""The second act: servers and a worker of a small cluster are killed, and it trains on."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

from rich.console import Console

import holdfast as hf
from benchmarks.demo import cluster_job
from benchmarks.demo.picture import costs, drawn
from holdfast.cluster.deaths import deaths_of
from holdfast.cluster.happenings import Committed, Event
from holdfast.report import run_report

SERVERS, WORKERS = 3, 2
SAVE_EVERY = 100  # steps
VICTIMS = ("server-1.1", "worker-0.1", "server-0.1")  # as their processes are called
FIRST_KILL, BETWEEN_KILLS = 2, 2  # checkpoints
LONGEST_WAIT_S = 0.6


class Killer:
    """Kills a process a moment after every other checkpoint: the later, the more a death costs.

    Args:
        seed: From which the moments are drawn.
        console: Where to say so.
    """

    def __init__(self, seed: int, console: Console) -> None:
        self._chance = random.Random(seed)
        self._console = console
        self._victims = list(VICTIMS)
        self._commits = 0

    def hear(self, event: Event) -> None:
        """As a hook of the cluster."""
        if not isinstance(event, Committed) or not self._victims:
            return
        self._commits += 1
        if self._commits >= FIRST_KILL and (self._commits - FIRST_KILL) % BETWEEN_KILLS == 0:
            wait_s = self._chance.uniform(0.2, LONGEST_WAIT_S)
            threading.Timer(wait_s, self._kill, [self._victims.pop(0)]).start()

    def _kill(self, name: str) -> None:
        pid = child_called(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self._console.print(f"  [red]SIGKILL[/red] for {name}, process {pid}")


def child_called(name: str) -> int | None:
    """The process that was started by this one under a name."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except (OSError, IndexError):
            continue  # it has ended
        if parent == os.getpid() and name in words:
            return int(folder.name)
    return None


def play(url: str, report: Path, *, seed: int, console: Console) -> bool:
    """Train, kill, show what it cost; whether all of it was survived."""
    console.print(
        f"A cluster of {SERVERS} servers, a spare and {WORKERS} workers. Of its processes {len(VICTIMS)} are killed."
    )
    with hf.Cluster(
        url,
        model=cluster_job.build_model,
        train=cluster_job.train,
        servers=SERVERS,
        workers=WORKERS,
        spares=1,
        optimizer=hf.Adagrad(cluster_job.LR_TABLES),
        dense_optimizer=hf.Adagrad(cluster_job.LR_DENSE),
        tables=cluster_job.tables(),
        save=hf.EverySteps(SAVE_EVERY),
        strategy=hf.Partial(priority=hf.SSU(), budget=hf.PLS(0.1)),
        retention=hf.KeepLast(2),
        launcher=hf.LocalProcesses(worker_threads=1),
        on_event=Killer(seed, console).hear,
    ) as cluster:
        cluster.run()
    return _tell(hf.open_run(url), report, console)


def _tell(run: hf.Run, report: Path, console: Console) -> bool:
    (job,) = run.jobs()
    deaths = deaths_of(job.events)
    console.print(drawn(job, width=min(console.width, 100) - 12))
    console.print(costs(deaths))
    problems = run.verify()
    cluster_auc, plain_auc = cluster_job.stored_auc(run), cluster_job.plain_auc()
    console.print(
        f"verify: {len(problems)} problems; AUC {cluster_auc:.4f} with these deaths, {plain_auc:.4f} of one process "
        f"that trained on the same {cluster_job.STEPS:,} batches undisturbed"
    )
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(run_report(run), encoding="utf-8")
    console.print(f"the same as a page: {report}", soft_wrap=True)
    return not problems and len(deaths) == len(VICTIMS) and all(each.replaced_s is not None for each in deaths)
