"""A server dies, and its rows come back from parities while training goes on: how fast, and at what cost."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.claims._cluster_clock import children, read_stamps
from benchmarks.claims._cluster_job import JobPlan
from benchmarks.claims._cluster_pause import Killer
from benchmarks.claims._cluster_runs import folder_for, run_cluster
from benchmarks.claims._parity_rivals import protected
from benchmarks.claims._rebuild_profile import profiled, summarize
from holdfast.cluster.happenings import Died, Event, Redundant
from holdfast.cluster.launch.local import LocalProcesses

_PATIENCE_S = 120.0
_TOLD_S = 5.0  # between two words about a recovery that takes long
_NORMAL_S = 3.0  # of training before a death: what training during the recovery is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilding:
    """From a death until redundancy is whole."""

    killed_s: float  # when, since the epoch
    took_s: float
    longest_pause_s: float  # between two finished steps
    throughput: float  # over what it was before
    steps_per_s: float  # before
    heard_s: float = 0.0  # from the death until the controller had heard of it
    cpu_s: float = 0.0  # of all servers together meanwhile


class RebuildWatch(Killer):
    """Kills servers of a job that has parity, each when redundancy is whole.

    Args:
        folder: Of the job.
        kills: How many.
        spares: Whether a process is there that takes a dead one's place at once; 0: one is started.

    Attributes:
        rebuildings: What each death cost.
    """

    def __init__(self, folder: Path, kills: int, *, spares: int = 1) -> None:
        super().__init__(folder, kills)
        self.rebuildings: list[Rebuilding] = []
        self._spares = spares
        self._is_whole = threading.Event()
        self._died_s = self._whole_s = 0.0
        self._used_s: dict[int, float] = {}  # by process, when redundancy was whole

    def hear(self, event: Event) -> None:
        """What happens to the job."""
        if isinstance(event, Died):
            self._died_s = event.at_s
        if isinstance(event, Redundant):
            self._whole_s = event.at_s
            self._used_s = _used_s()
            self._is_whole.set()
            self._is_ready.set()

    def _await_spare(self) -> None:
        if self._spares:
            super()._await_spare()

    def _measure(self, server: int) -> None:
        time.sleep(_NORMAL_S)
        self._is_whole.clear()
        used_s = _used_s()
        killed_s = self._kill(server)
        while not self._is_whole.wait(_TOLD_S):
            _say("not whole yet", rebuilding(read_stamps(self._folder), killed_s, time.time()))
            if time.time() - killed_s > _PATIENCE_S:
                raise TimeoutError("redundancy is not whole again")
        self._await_steps(len(read_stamps(self._folder)) + 1)
        found = rebuilding(read_stamps(self._folder), killed_s, self._whole_s)
        cpu_s = sum(after_s - used_s[process] for process, after_s in self._used_s.items() if process in used_s)
        self.rebuildings.append(replace(found, heard_s=self._died_s - killed_s, cpu_s=cpu_s))
        _say("whole", self.rebuildings[-1])


def _used_s() -> dict[int, float]:
    """Processor time of each server and spare, by process."""
    found = children(os.getpid()).items()
    return {process: used_s for name, (process, used_s) in found if name.startswith(("server", "spare"))}


def _say(what: str, found: Rebuilding) -> None:
    """At once, should the rest be cut off."""
    print(f"{what}: {found}", file=sys.stderr, flush=True)


def rebuilding(stamps: list[float], killed_s: float, whole_s: float) -> Rebuilding:
    """What the times of a worker's steps say.

    Args:
        stamps: When each step was done.
        killed_s: When the server died.
        whole_s: When redundancy was whole again.
    """
    before = [each for each in stamps if killed_s - _NORMAL_S <= each <= killed_s]
    first = next(number for number, each in enumerate(stamps) if each > killed_s)
    last = next((number for number, each in enumerate(stamps) if each > whole_s), len(stamps) - 1)
    during = stamps[first - 1 : last + 1]  # from the last step before the death to the first one after the recovery
    normal = (len(before) - 1) / (before[-1] - before[0])
    return Rebuilding(
        killed_s=killed_s,
        took_s=whole_s - killed_s,
        longest_pause_s=max(later - sooner for sooner, later in pairwise(during)),
        throughput=(len(during) - 1) / (during[-1] - during[0]) / normal,
        steps_per_s=normal,
    )


def rebuild(
    plan: JobPlan,
    *,
    servers: int,
    kills: int,
    pace: str,
    spares: int = 1,
    profile: Path | None = None,
    launcher: Callable[..., LocalProcesses] = LocalProcesses,
) -> Rebuilding:
    """The medians over some deaths, and the longest pause of them all.

    Args:
        plan: What to train.
        servers: How many there are.
        kills: How many of them die, one after the other.
        pace: Of the rebuild.
        spares: Processes that wait for a death.
        profile: Where servers write down what they did, and what that amounts to. None: they do not.
        launcher: What starts processes, where servers do not write that down.
    """
    options: dict[str, Any] = {"launcher": launcher if profile is None else profiled(profile)}
    with folder_for(plan) as planned:
        watch = RebuildWatch(Path(planned.folder), kills, spares=spares)
        watch.start()
        parity = protected(plan.data, rebuild=pace)
        run_cluster(planned, servers=servers, spares=spares, parity=parity, on_event=watch.hear, **options)
        watch.join()
    found = watch.rebuildings
    if profile is not None:
        (profile / f"{pace}.txt").write_text(summary(profile, found), encoding="utf-8")
    return Rebuilding(
        killed_s=found[0].killed_s,
        took_s=statistics.median(each.took_s for each in found),
        longest_pause_s=max(each.longest_pause_s for each in found),
        throughput=statistics.median(each.throughput for each in found),
        steps_per_s=statistics.median(each.steps_per_s for each in found),
        heard_s=statistics.median(each.heard_s for each in found),
        cpu_s=statistics.median(each.cpu_s for each in found),
    )


def summary(profile: Path, found: Sequence[Rebuilding]) -> str:
    """What servers did during each of the deaths."""
    return "\n".join(f"{each}\n{summarize(profile, each.killed_s, each.killed_s + each.took_s)}" for each in found)
