"""The second act: processes of a small cluster are killed, and it climbs down its ladder as far as it must."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import holdfast as hf
from benchmarks.demo import cluster_job
from benchmarks.demo.picture import costs, drawn
from holdfast.cluster.happenings import Committed, Event, LadderChosen, Paused, Recovered, Redundant, WentBack
from holdfast.report import run_report

SERVERS, SPARES, WORKERS = 3, 2, 2
SAVE_EVERY = 120  # steps
LADDER = hf.Ladder(
    parity=hf.Parity(data=2, parity=1, domain="process", rebuild="fast"),
    partial=True,
    budget=hf.PLS(0.04),  # two of three servers may lose 43 steps of 720
    priority=None,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """Who is killed when something happens: ``server-1`` is whoever has that place then."""

    rung: str | None  # that it should take; None: none is needed
    victims: tuple[str, ...]
    due: Callable[[Event], bool]
    says: str


def _is_committed(event: Event) -> bool:
    return isinstance(event, Committed) and event.step > 0


def _is_copied(event: Event) -> bool:
    """A save is due, so the last one is old; with server 0 dies who would have led its commit."""
    return isinstance(event, Paused)


STRIKES = (
    Strike(rung="parity", victims=("server-1",), due=_is_committed, says="a server"),
    Strike(rung=None, victims=("worker-0",), due=_is_committed, says="a worker"),
    Strike(rung="partial", victims=("server-1", "server-2"), due=_is_committed, says="two servers, just after a save"),
    Strike(rung="full", victims=("server-0", "server-2"), due=_is_copied, says="two servers, long after a save"),
)


class Killer:
    """Strikes once rows are protected again, and tells what each strike has cost.

    Args:
        console: Where to say so.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._strikes = list(STRIKES)
        self._is_ready = False

    def hear(self, event: Event) -> None:
        """As a hook of the cluster."""
        match event:
            case LadderChosen(rungs=rungs):
                self._console.print(f"  its ladder: [bold]{rungs}[/bold]")
            case Redundant(took_s=took_s):
                self._is_ready = True
                self._console.print(f"  [green]every row is protected by parity[/green], after {took_s:.1f} s")
            case WentBack(checkpoint=checkpoint):
                self._console.print(f"  another partial recovery would exceed the PLS budget: back to {checkpoint}")
            case Recovered():
                self._console.print(f"  {told(event)}")
        if self._strikes and self._is_ready and self._strikes[0].due(event):
            self._strike(self._strikes.pop(0))

    def _strike(self, strike: Strike) -> None:
        self._is_ready = strike.rung is None
        found = [(name, pid) for name in strike.victims if (pid := child_called(name)) is not None]
        for _, pid in found:
            os.kill(pid, signal.SIGSTOP)  # so that all die at a time
        for _, pid in found:
            os.kill(pid, signal.SIGKILL)
        names = ", ".join(f"{name} (process {pid})" for name, pid in found)
        self._console.print(f"  [red]SIGKILL[/red] for {strike.says}: {names}")


def told(event: Recovered) -> str:
    """Which rung it was, and what it cost."""
    again = "trained again" if event.rung == "full" else "lost to its rows"
    samples = "" if event.lost_samples is None else f", {event.lost_samples:,.0f} samples"
    lost = f"{event.lost_steps} steps{samples} {again}" if event.lost_steps else "nothing lost"
    pls = f", PLS {event.lost_pls:.4f}" if event.lost_pls else ""
    return f"[bold]rung {event.rung}[/bold] for {event.member}: {event.took_s:.1f} s, {lost}{pls}"


def child_called(name: str) -> int | None:
    """The process that was started by this one and has a place now, such as ``server-1``."""
    found: dict[int, int] = {}  # by incarnation
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            before, _, after = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        (state, parent), (place, _, life) = after.split()[:2], before.partition("(")[2].rpartition(".")
        if int(parent) == os.getpid() and state != "Z" and place == name and life.isdigit():
            found[int(life)] = int(folder.name)
    return found[max(found)] if found else None


def play(url: str, report: Path, *, console: Console) -> bool:
    """Train, kill, show what it cost; whether all of it was survived, each by the rung that it takes."""
    deaths = sum(len(each.victims) for each in STRIKES)
    size = f"{SERVERS} servers, {SPARES} spares and {WORKERS} workers"
    console.print(f"A cluster of {size}. Of its processes {deaths} are killed.")
    with hf.Cluster(
        url,
        model=cluster_job.build_model,
        train=cluster_job.train,
        servers=SERVERS,
        workers=WORKERS,
        spares=SPARES,
        optimizer=hf.Adagrad(cluster_job.LR_TABLES),
        dense_optimizer=hf.Adagrad(cluster_job.LR_DENSE),
        tables=cluster_job.tables(),
        save=hf.EverySteps(SAVE_EVERY),
        strategy=hf.Full(),
        ladder=LADDER,
        retention=hf.KeepLast(2),
        launcher=hf.LocalProcesses(worker_threads=1),
        on_event=Killer(console).hear,
    ) as cluster:
        cluster.run()
    return _tell(hf.open_run(url), report, console)


def _tell(run: hf.Run, report: Path, console: Console) -> bool:
    (job,) = run.jobs()
    console.print(drawn(job, width=min(console.width, 100) - 12))
    console.print(costs(job.deaths))
    problems = run.verify()
    cluster_auc, plain_auc = cluster_job.stored_auc(run), cluster_job.plain_auc()
    console.print(
        f"verify: {len(problems)} problems; AUC {cluster_auc:.4f} with these deaths, {plain_auc:.4f} of one process "
        f"that trained on the same {cluster_job.STEPS:,} batches undisturbed"
    )
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(run_report(run), encoding="utf-8")
    console.print(f"the same as a page: {report}", soft_wrap=True)
    expected = [each.rung for each in STRIKES for _ in each.victims]
    return not problems and [death.rung for death in job.deaths] == expected
