"""How long a training stands still when one of its servers is killed."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

from benchmarks.claims._cluster_clock import children, read_stamps
from benchmarks.claims._cluster_job import END, JobPlan
from benchmarks.claims._cluster_runs import folder_for, run_cluster
from holdfast.cluster.happenings import Committed, Event
from holdfast.policy import SaveContext, SavePolicy, Strategy

SETTLED = 12  # steps after which all is as before
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Once(SavePolicy):
    """One save, at a step."""

    step: int
    kind: ClassVar[str] = "once"

    def due(self, context: SaveContext) -> bool:
        return context.last_save_step < self.step <= context.step

    def steps_until_due(self, context: SaveContext) -> int | None:
        return None


class Killer(threading.Thread):
    """Kills servers of a job, one after the other, each when the training is as before; then ends the job.

    Attributes:
        pauses_s: How long each death took the training, apart from steps that it repeats.
    """

    def __init__(self, folder: Path, kills: int) -> None:
        super().__init__(name="killer", daemon=True)
        self.pauses_s: list[float] = []
        self._folder = folder
        self._kills = kills
        self._is_ready = threading.Event()

    def hear(self, event: Event) -> None:
        """What happens to the job."""
        if isinstance(event, Committed) and event.step >= SETTLED:
            self._is_ready.set()

    def run(self) -> None:
        try:
            if self._is_ready.wait(_PATIENCE_S):
                for number in range(self._kills):
                    self._await_spare()
                    self._await_steps(len(read_stamps(self._folder)) + 2 * SETTLED)
                    self._measure(number + 1)
        finally:
            (self._folder / END).touch()

    def _measure(self, server: int) -> None:
        before = read_stamps(self._folder)
        step_s = statistics.median(later - sooner for sooner, later in pairwise(before[-2 * SETTLED :]))
        killed_s = self._kill(server)
        steps = len(read_stamps(self._folder)) + SETTLED
        self._await_steps(steps)
        self.pauses_s.append(read_stamps(self._folder)[steps - 1] - killed_s - SETTLED * step_s)

    def _kill(self, server: int) -> float:
        """When it was."""
        name = next(each for each in children(os.getpid()) if each.startswith(f"server-{server}."))
        os.kill(children(os.getpid())[name][0], signal.SIGKILL)
        return time.time()

    def _await_spare(self) -> None:
        """Until the next one has started, and does nothing."""
        used_s, end_s = -1.0, time.monotonic() + _PATIENCE_S
        while time.monotonic() < end_s:
            time.sleep(0.5)
            spares = [each for name, (_, each) in children(os.getpid()).items() if name.startswith("spare")]
            if spares and spares[-1] > 0 and spares[-1] <= used_s + 0.02:
                return
            used_s = spares[-1] if spares else -1.0
        raise TimeoutError("no spare has started")

    def _await_steps(self, steps: int) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while len(read_stamps(self._folder)) < steps:
            if time.monotonic() > end_s:
                raise TimeoutError("the training does not go on")
            time.sleep(0.01)


def pause_s(plan: JobPlan, strategy: Strategy, *, servers: int, kills: int) -> float:
    """The median over some deaths."""
    with folder_for(plan) as planned:
        killer = Killer(Path(planned.folder), kills)
        killer.start()
        run_cluster(planned, servers=servers, spares=1, strategy=strategy, save=Once(SETTLED), on_event=killer.hear)
        killer.join()
        return statistics.median(killer.pauses_s)
