"""Agents that do not answer any more, and stores that keep them waiting: told, killed, replaced, fenced off."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import holdfast as hf
from holdfast.checkpoint.trainer.launcher import AgentProcess
from holdfast.runtime import Runtime
from holdfast.storage import LocalStore, MemoryStore, Store
from holdfast.testing.faults import FaultyStore, Operation
from holdfast.testing.runtime import with_runtime
from tests.tiny import ROWS, build, same, snapshot, train_step, uninterrupted

SETTINGS = {"grace_s": 0.0, "handle_sigterm": False, "agent_timeout_s": 60.0}


class Clock:
    """Time that passes only where a test says so, by ten seconds for every look at it: no machine is too slow for it.

    It stands still again once an agent was given up, so that the next one is in no hurry.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.runs = False
        self.deaths = lambda: 0
        self.runtime = Runtime(monotonic_s=self._look)

    def _look(self) -> float:
        if self.runs and self.deaths() == 0 and threading.current_thread() is threading.main_thread():
            self.now_s += 10.0
        return self.now_s


class Training:
    """A small model, its guard, and time that can be let run."""

    def __init__(self, place: str | Store, rows: tuple[int, ...] = ROWS, **settings: float) -> None:
        self.clock = Clock()
        self.model, self.optimizers = build(rows=rows)
        self.guard = with_runtime(hf.Checkpointer, self.clock.runtime)(
            place,
            model=self.model,
            optimizer=self.optimizers,
            save=hf.Never(),
            retention=hf.KeepAll(),
            settings=hf.Settings(**{**SETTINGS, **settings}),
        )
        self.clock.deaths = lambda: self.guard.stats.agent_deaths

    def step(self) -> None:
        self.guard.step(loss=train_step(self.model, self.optimizers, self.guard.steps))

    def step_until_answered(self) -> None:
        """Until the agent has said once more that it is alive, however slow the machine is."""
        liveness = self.guard._agents.client._liveness
        asked = liveness._asked + 1
        while liveness._answered < asked:
            self.step()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "run")


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "holdfast")
    return caplog


@pytest.fixture
def stopped() -> Iterator[list[int]]:
    """Processes that a test has stopped; they do not outlive it."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def stop(training: Training, stopped: list[int]) -> int:
    pid = training.guard.agent_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    stopped.append(pid)
    training.clock.runs = True
    return pid


def has_ended(pid: int) -> bool:
    """Also where it waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def restored(place: str | Store, step: int | None = None, rows: tuple[int, ...] = ROWS) -> dict[str, torch.Tensor]:
    model, optimizers = build(seed=9, rows=rows)
    hf.open_run(place).restore(step, model=model, optimizer=optimizers)
    return snapshot(model, optimizers)


def test_an_agent_that_is_stopped_between_saves_is_told_killed_reaped_and_replaced(
    url: str, stopped: list[int], told: pytest.LogCaptureFixture
) -> None:
    training = Training(url)
    with training.guard:
        training.guard.resume()
        training.step()
        training.guard.save(wait=True)
        pid = stop(training, stopped)
        while not training.guard.stats.agent_deaths:
            training.step()
        assert not Path(f"/proc/{pid}").exists()  # reaped, before the next one started
        assert "the agent has not responded for 30 s; it will be killed and replaced after 60 s" in told.text
        assert "the agent has not responded for 60 s (Settings.agent_timeout_s) and was killed" in told.text
        training.guard.save(wait=True)
        last = training.guard.steps
    assert [info.step for info in hf.open_run(url).checkpoints()] == [1, last]
    assert same(restored(url), uninterrupted(last))


def test_leaving_does_not_wait_for_ever_and_saves_with_the_next_agent(url: str, stopped: list[int]) -> None:
    training = Training(url)
    training.guard.resume()
    training.step()
    stop(training, stopped)
    training.guard.save()  # its snapshot lies in a buffer that nobody reads
    training.guard.close()
    assert [info.step for info in hf.open_run(url).checkpoints()] == [1]
    assert same(restored(url), uninterrupted(1))


def test_an_agent_that_stops_while_it_is_left_is_killed(
    url: str, stopped: list[int], told: pytest.LogCaptureFixture
) -> None:
    training = Training(url)
    training.guard.resume()
    training.step()
    training.guard.save(wait=True)
    pid = stop(training, stopped)
    training.guard._agents.close()
    assert not Path(f"/proc/{pid}").exists()
    assert "and was killed" in told.text
    training.guard._release()


def test_a_step_that_waits_for_room_in_the_buffer_is_released(
    url: str, stopped: list[int], told: pytest.LogCaptureFixture
) -> None:
    rows = (20_000, 40)
    training = Training(url, rows, buffer_bytes=2 * 65536, frame_bytes=65536)
    with training.guard:
        training.guard.resume()
        training.step()
        stop(training, stopped)
        assert not training.guard.save()
        assert "waiting for space in the snapshot buffer after" in told.text
        training.step()
        training.guard.save(wait=True)
    assert hf.open_run(url).checkpoints()[-1].step == 2
    assert same(restored(url, rows=rows), snapshot(training.model, training.optimizers))


def test_one_that_cannot_be_killed_and_wakes_late_commits_nothing(
    url: str, stopped: list[int], told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(url)
    with training.guard:
        training.guard.resume()
        training.step()
        pid = stop(training, stopped)
        monkeypatch.setattr(AgentProcess, "kill", lambda self, timeout_s: False)  # as if it waited in the kernel
        assert training.guard.save()  # all of it is handed over, and none of it read
        with suppress(hf.SaveFailed):
            training.guard.drain()
        assert (
            f"the agent (process {pid}) cannot be killed: the run's term was raised and a new buffer was allocated"
            in told.text
        )
        training.step()
        training.guard.save(wait=True)
        run = hf.open_run(url)
        assert [info.step for info in run.checkpoints()] == [2]
        os.kill(pid, signal.SIGCONT)
        while not has_ended(pid):
            time.sleep(0.01)
        assert [(info.step, info.term) for info in run.checkpoints()] == [(2, 2)]
        training.step()
        training.guard.save(wait=True)
    assert [info.step for info in run.checkpoints()] == [2, 3]
    assert same(restored(url, 2), uninterrupted(2)) and same(restored(url, 3), uninterrupted(3))
    assert run.verify() == []


class Gate:
    """Holds puts of rows back until it is opened."""

    def __init__(self, store: FaultyStore) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        store.before = self._before

    def open(self) -> None:
        self._open.set()

    def _before(self, operation: Operation) -> None:
        if operation.kind == "put" and operation.name.endswith(".safetensors"):
            self.reached.set()
            assert self._open.wait(100.0)


def test_a_store_that_is_slow_is_told_and_its_agent_left_alone(told: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(MemoryStore())
    gate = Gate(store)
    training = Training(store)
    with training.guard:
        training.guard.resume()
        training.step()
        training.guard.save()
        assert gate.reached.wait(60.0)
        for _ in range(30):  # five minutes: long after an agent that is silent would be killed
            training.clock.now_s += 10.0
            training.step_until_answered()
        assert re.search(
            r"has been waiting \d+ s for its store \(put of data/.*; it will be killed and replaced after 720 s",
            told.text,
        )
        gate.open()
        training.guard.drain()
        assert training.guard.stats.agent_deaths == 0


def test_an_agent_whose_store_never_answers_is_replaced_and_commits_nothing_when_it_does(
    told: pytest.LogCaptureFixture,
) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    gate = Gate(store)
    training = Training(store, retry_s=0.0, store_timeout_s=100.0, agent_timeout_s=1e9)
    with training.guard:
        training.guard.resume()
        training.step()
        training.guard.save()
        assert gate.reached.wait(60.0)
        training.clock.runs = True
        stuck = training.guard._agents.client
        while not training.guard.stats.agent_deaths:
            training.step()
        assert (
            "for its store (put of data/" in told.text
            and "(longer than Settings.retry_s and store_timeout_s allow)" in told.text
        )
        store.before = None  # the next agent is answered; the first one's request is still in the gate
        with suppress(hf.SaveFailed):
            training.guard.drain()
        last = training.guard.steps
        training.guard.save(wait=True)
        gate.open()
        while not stuck.has_ended:
            time.sleep(0.01)
        training.step()
        training.guard.save(wait=True)
    assert [info.step for info in hf.open_run(inner).checkpoints()] == [last, last + 1]
    assert same(restored(inner, last), uninterrupted(last)) and same(restored(inner), uninterrupted(last + 1))
    assert hf.open_run(inner).verify() == []


def test_waiting_for_a_save_is_told_with_what_the_agent_does(told: pytest.LogCaptureFixture) -> None:
    store = FaultyStore(MemoryStore())
    gate = Gate(store)
    training = Training(store, agent_timeout_s=1e9, store_timeout_s=1e9)
    with training.guard:
        training.guard.resume()
        training.step()
        training.guard.save()
        assert gate.reached.wait(60.0)
        training.clock.runs = True
        told.handler.addFilter(lambda record: gate.open() or True)  # as soon as somebody is told
        training.guard.drain()
        training.clock.runs = False
    assert "waiting for the save of step 1 after" in told.text
    assert training.guard.stats.agent_deaths == 0


def test_a_run_on_a_disk_goes_on_under_a_raised_term(tmp_path: Path) -> None:
    """What the next trainer sees is a run like any other."""
    store = LocalStore(tmp_path / "run")
    training = Training(store)
    with training.guard:
        training.guard.resume()
        training.step()
        training.guard.save(wait=True)
        client = training.guard._agents.client
        client._lost = True  # given up
        training.guard._agents.lost("gone")
        training.step()
        training.guard.save(wait=True)
    assert [(info.step, info.term) for info in hf.open_run(store).checkpoints()] == [(1, 1), (2, 2)]
    assert [event.what.value for event in hf.open_run(store).history()] == ["began", "fenced off its agent"]
    again = Training(store)
    with again.guard:
        assert again.guard.resume() == 2
        assert same(snapshot(again.model, again.optimizers), uninterrupted(2))
