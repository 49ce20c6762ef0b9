"""Jobs for the fault tests: the scripted model on any store, in this process, with a clock that never waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import holdfast as hf
from holdfast.policy import Retention, Strategy
from holdfast.run import Run
from holdfast.runtime import Runtime
from holdfast.storage import Store
from holdfast.testing.runtime import with_runtime
from tests.crash.scripted import State, Training
from tests.tiny import same

SETTINGS: dict[str, Any] = {
    "buffer_bytes": 2 * 65536,
    "frame_bytes": 65536,
    "uploads": 1,
    "retry_s": 0.0,
    "takeover_s": 0.0,
    "handle_sigterm": False,
    "agent_timeout_s": 1e9,  # a clock that leaps must not make a living agent look silent
    "store_timeout_s": 1e9,
}


class Clock:
    """Time in which nobody waits: a pause is over at once, and is remembered."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self.runtime = Runtime(
            monotonic_s=lambda: time.monotonic() + sum(self.pauses_s),
            sleep=self.pauses_s.append,
            wait=lambda event, _: threading.Event.wait(event),
        )


class Job:
    """A training and its guard."""

    def __init__(
        self,
        store: Store,
        strategy: Strategy = hf.Consecutive(),  # noqa: B008 - frozen
        retention: Retention = hf.KeepAll(),  # noqa: B008
        **settings: Any,
    ) -> None:
        self.training = Training()
        self.clock = Clock()
        self.states: dict[int, State] = {}
        self.guard = with_runtime(hf.Checkpointer, self.clock.runtime)(
            store,
            model=self.training.model,
            optimizer=self.training.optimizers,
            extra=self.training.extra,
            save=hf.Never(),
            strategy=strategy,
            retention=retention,
            settings=hf.Settings(**{**SETTINGS, **settings}),
        )

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.guard.step(loss=self.training.step(self.guard.steps + 1))
            self.states[self.guard.steps] = self.training.state()

    def save(self) -> bool:
        """Save and wait; whether it was committed."""
        try:
            self.guard.save(wait=True)
        except (hf.SaveFailed, hf.TakenOver):
            return False
        return True

    def train_until(self, condition: Callable[[], bool]) -> None:
        """Train on until something has happened that the loop does not wait for."""
        wait_until(condition, meanwhile=self.train)


def wait_until(condition: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Until something has happened in another thread."""
    deadline_s = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        meanwhile()
        time.sleep(0.001)


def steps_of(store: Store) -> list[int]:
    """The steps of the checkpoints that a run holds."""
    return [info.step for info in Run(store).checkpoints()]


def check_exact(store: Store, states: dict[int, State]) -> None:
    """Every checkpoint of the run holds what the training had at its step, and not a byte of it is off."""
    run = with_runtime(Run, Clock().runtime)(store)
    assert run.verify() == []
    for info in run.checkpoints():
        training = Training()
        run.restore(info.id, model=training.model, optimizer=training.optimizers, extra=training.extra)
        assert same(training.state(), states[info.step]), info.step
