"""Builds a controller and what belongs to it, each once."""

from __future__ import annotations

import sys
from collections.abc import Callable

from holdfast.checkpoint.trainer.policies import Policies
from holdfast.cluster.controller.accounts import Accounts
from holdfast.cluster.controller.audience import Audience, log
from holdfast.cluster.controller.crew import Crew
from holdfast.cluster.controller.live_view import LiveView
from holdfast.cluster.controller.loop import Controller
from holdfast.cluster.controller.losses import Losses
from holdfast.cluster.controller.recorder import Recorder
from holdfast.cluster.controller.redundancy import Redundancy
from holdfast.cluster.controller.reporter import Reporter
from holdfast.cluster.controller.resume import Beginning
from holdfast.cluster.controller.save_desk import SaveDesk
from holdfast.cluster.controller.timetable import Timetable
from holdfast.cluster.controller.worker_count import WorkerCount
from holdfast.cluster.core.controller import ControllerCore, Recovery
from holdfast.cluster.core.members import View
from holdfast.cluster.happenings import Event, LadderChosen
from holdfast.cluster.job import Job
from holdfast.cluster.ladder import Settled
from holdfast.cluster.launch.base import Launcher
from holdfast.cluster.progress import Progress
from holdfast.cluster.record import JobRecord
from holdfast.cluster.wire.beats import Beats
from holdfast.cluster.wire.endpoint import Endpoint
from holdfast.runtime import SYSTEM
from holdfast.storage import Store


class ControllerParts:
    """What all parts of a controller share, and how each is built from it.

    Args:
        job: What processes are told.
        beginning: Where it begins.
        settled: How it makes up for deaths of servers.
        workers: How many it begins with.
        policies: When to save, and how.
        store: Of the run.
        on_event: The user's hook.
        on_progress: The user's other one.
        view: Whether to show how it goes. None: if stderr is a terminal.
    """

    def __init__(
        self,
        job: Job,
        beginning: Beginning,
        settled: Settled,
        *,
        workers: int,
        policies: Policies,
        store: Store,
        on_event: Callable[[Event], object] | None,
        on_progress: Callable[[Progress], object] | None,
        view: bool | None,
    ) -> None:
        self._job = job
        self._beginning = beginning
        self._ladder = settled.ladder
        self._policies = policies
        self._accounts = self._make_accounts()
        is_shown = sys.stderr.isatty() if view is None else view
        self.view = LiveView(self._accounts, servers=job.servers, workers=workers) if is_shown else None
        record = JobRecord(
            term=beginning.term, servers=job.servers, workers=workers, synchronous=job.pacing.synchronous
        )
        self.recorder = Recorder(store, record, self._accounts)
        self.reporter = Reporter(self._accounts, on_progress)
        self._audience = Audience(on_event, [self.recorder.tell, log if self.view is None else self.view.tell])
        chosen = LadderChosen(rungs=str(settled.ladder), why=settled.why, at_s=SYSTEM.wall_s())
        self._audience.tell(chosen)
        self.count = WorkerCount(workers, self._audience.tell)
        self._core = ControllerCore(
            View.first(servers=job.servers, workers=workers),
            progress=beginning.progress,
            synchronous=job.pacing.synchronous,
            recovery=Recovery.PARTIAL if self._is_partial else Recovery.FULL,
            parity=bool(job.rings),
        )

    def controller(self, endpoint: Endpoint, beats: Beats, launcher: Launcher, *, spares: int) -> Controller:
        """The controller itself."""
        return Controller(
            self._core,
            endpoint,
            Crew(launcher, beats, self._job.pack, spares=spares),
            launcher,
            self._accounts,
            self._desk(endpoint),
            self.count,
            self._ladder,
            Redundancy(runtime=SYSTEM),
            baseline_first=self._is_partial and not self._beginning.checkpoint,
            tell=self._audience.tell,
        )

    @property
    def _is_partial(self) -> bool:
        return self._policies.partial is not None

    def _make_accounts(self) -> Accounts:
        partial = self._policies.partial
        budget = partial.budget if partial is not None else None
        return Accounts(
            Losses(budget, servers=self._job.servers, stored=self._beginning.pls, step=self._beginning.step),
            synchronous=self._job.pacing.synchronous,
            runtime=SYSTEM,
            steps={worker: each.pushed for worker, each in self._beginning.progress.items()},
        )

    def _desk(self, endpoint: Endpoint) -> SaveDesk:
        save, priority, step = self._policies.save, self._policies.priority, self._beginning.step
        return SaveDesk(
            self._core,
            endpoint,
            self._accounts,
            saves=Timetable(save, step, SYSTEM),
            between=Timetable(save.scaled(priority.r) if priority is not None else None, step, SYSTEM),
            beginning=self._beginning,
            synchronous=self._job.pacing.synchronous,
            overlap=self._policies.overlap,
            tell=self._audience.tell,
            runtime=SYSTEM,
        )
