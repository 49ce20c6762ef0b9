"""A job of real processes whose controller is a thread of the test: a test sees its events, and kills whom it likes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

import holdfast as hf
from holdfast.cluster import happenings as happened
from holdfast.cluster.launch.base import Launching
from tests.cluster.processes import programs
from tests.cluster.processes.audit import Audited
from tests.cluster.processes.gate import Gate
from tests.cluster.processes.watched import WAIT_S, Watched

Happened = TypeVar("Happened")


class Abandoned(BaseException):
    """The test has ended before its job."""


class RunningJob(Watched):
    """A cluster at work. Everything that it ever started is remembered.

    Attributes:
        PATIENCE_S: How long to wait for something that is bound to happen.

    Args:
        url: Of its run.
        folder: For its gate, which is shut at first: workers are held before their first step.
        options: Of the cluster; a job of one worker and three servers is the default. Where it has parity, its servers
            are audited.
    """

    PATIENCE_S = WAIT_S

    def __init__(self, url: Path, folder: Path, **options: Any) -> None:
        super().__init__(os.getpid())
        folder.mkdir(parents=True, exist_ok=True)
        self.url = url
        self.gate = Gate(folder)
        self.gate.open(options.pop("limit", 0))
        self.events: list[happened.Event] = []
        self.problem: BaseException | None = None
        self._changed = threading.Condition()
        self._is_abandoned = False
        launcher = self._launching()
        settings = dict(
            model=programs.build_net,
            train=programs.train_gated,
            servers=3,
            workers=1,
            optimizer=hf.Adagrad(0.05),
            dense_optimizer=hf.Adam(0.01),
            tables=programs.ON_SERVERS,
            strategy=hf.Partial(priority=None),
            save=hf.Never(),
            ahead=0,
            launcher=Audited(launcher) if options.get("parity") else launcher,
            on_event=self._hear,
            view=False,
        )
        if options.get("synchronous"):
            settings["strategy"] = hf.Full()  # nothing is recovered partially in step
        settings = {**settings, **options}
        asked = hf.Ladder.of(settings.get("parity"), settings["strategy"])
        self.cluster = hf.Cluster(url, **{"ladder": asked, **settings})  # the planner would add parity
        self._thread = threading.Thread(target=self._run, name="controller")
        self._thread.start()

    def _launching(self) -> Launching:
        return hf.LocalProcesses(worker_threads=1)

    # ---- what happens ----------------------------------------------------------------------------------------------

    def of(self, kind: type[Happened]) -> list[Happened]:
        """All events of a kind so far."""
        with self._changed:
            return [each for each in self.events if isinstance(each, kind)]

    def wait_for(self, kind: type[Happened], count: int = 1) -> Happened:
        """The event of a kind with this number, counted from 1."""
        self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    def saved(self, step: int) -> happened.Committed:
        """Wait until the save of a step is committed."""
        self.until(lambda: self.has_saved(step))
        return next(each for each in self.of(happened.Committed) if each.step == step)

    def has_saved(self, step: int) -> bool:
        """Whether the save of a step is committed."""
        return any(each.step == step for each in self.of(happened.Committed))

    def until(self, is_met: Callable[[], Any]) -> None:
        """Wait for something that is bound to happen while the job runs."""
        end_s = time.monotonic() + self.PATIENCE_S
        while not is_met():
            assert self._thread.is_alive(), f"the job ended: {self.problem!r}, after {self.events[-3:]}"
            assert time.monotonic() < end_s, f"nothing happened after {self.events[-3:]}"
            with self._changed:
                self._changed.wait(0.05)

    def run_to(self, step: int, worker: int = 0, **how: Any) -> int:
        """Let workers go on up to this step; the process of the one that is held there."""
        self.gate.open(step, **how)
        self.until(lambda: (held := self.gate.held(worker)) is not None and held["step"] >= step)
        held = self.gate.held(worker)
        assert held is not None and held["step"] == step
        self.look()
        return held["pid"]

    def end(self) -> None:
        """Wait for the end; raises what the job raised."""
        self.look()
        self._thread.join()
        if self.problem is not None:
            raise self.problem

    def finish(self, step: int) -> None:
        """Train up to this step, then to the end."""
        self.wait_for(happened.Started)
        self.gate.open(step, is_end=True)
        self.end()

    def abandon(self) -> None:
        """End it, whatever it is at."""
        self._is_abandoned = True
        while self._thread.is_alive():
            for process in self.doomed():
                with suppress(psutil.Error):
                    process.kill()
            self._thread.join(0.1)
            self.look()

    def doomed(self) -> list[psutil.Process]:
        """Whom to kill so that the job ends."""
        return self.left()

    def _hear(self, event: happened.Event) -> None:
        if self._is_abandoned:
            raise Abandoned
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with self.cluster:
                self.cluster.run()
        except BaseException as error:
            self.problem = error
        finally:
            with self._changed:
                self._changed.notify_all()
