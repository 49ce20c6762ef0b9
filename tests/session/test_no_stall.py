"""Whole runs whose snapshots leave a device while training goes on. The device is the host; its copies come late."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import holdfast as hf
from holdfast.checkpoint.snapshot import side_streams, staging
from holdfast.events import SaveGivenUp, SnapshotTaken
from holdfast.kernels.quantize import tensors
from holdfast.storage import MemoryStore, Store
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams
from tests.session.test_precision import Run
from tests.tiny import build, same, snapshot, train_step

SETTINGS = hf.Settings(handle_sigterm=False, grace_s=0.0)


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[DelayedStreams]:
    """All tensors are as if on a device, which encodes."""
    delayed = DelayedStreams()
    monkeypatch.setattr(side_streams, "streams_for", lambda tensors: delayed)
    monkeypatch.setattr(tensors, "is_cheap", lambda table, scheme: tensors.is_plain(table))
    yield delayed


def train(place: Store | Path, steps: int, **options: Any) -> tuple[hf.Checkpointer, dict[int, dict[str, Tensor]]]:
    """Save while the steps go on; returns what every step left."""
    model, optimizers = build()
    states = {}
    options = {"save": hf.EverySteps(4), "retention": hf.KeepAll(), "settings": SETTINGS, **options}
    with hf.Checkpointer(place, model=model, optimizer=optimizers, **options) as guard:
        for step in range(steps):
            guard.step(loss=train_step(model, optimizers, step))
            states[guard.steps] = snapshot(model, optimizers)
    return guard, states


def check(place: Store | Path, states: dict[int, dict[str, Tensor]]) -> int:
    """Every checkpoint is the state of its step; how many there are."""
    run = hf.open_run(place)
    for info in run.checkpoints():
        model, optimizers = build(seed=1)
        run.restore(info.step, model=model, optimizer=optimizers)
        assert same(snapshot(model, optimizers), states[info.step])
    assert not run.verify()
    return len(run.checkpoints())


@pytest.mark.parametrize("strategy", [hf.Full(), hf.OneShot(), hf.Consecutive(), hf.Grid()], ids=repr)
@pytest.mark.parametrize("overlap", list(hf.Overlap))
def test_every_checkpoint_is_the_state_of_its_step(strategy: Any, overlap: hf.Overlap, streams: DelayedStreams) -> None:
    store = MemoryStore()
    guard, states = train(store, 18, strategy=strategy, overlap=overlap)
    found = check(store, states)
    assert found == 5 if overlap is hf.Overlap.WAIT else found > 0
    stats = guard.stats
    assert stats.drained >= found and stats.drained_bytes and not (stats.device_waits or stats.thrown_away)
    assert streams.made == streams.queued


@pytest.mark.parametrize("precision", [hf.Bits(2), hf.Bits(8), hf.Bits(2, difference=True)], ids=repr)
def test_rows_in_few_bits_are_those_that_the_agent_would_have_made(precision: hf.Bits) -> None:
    run = Run(MemoryStore(), hf.Consecutive(), precision, optimizer="adagrad")
    run.life(range(0, 4))
    run.check()


def test_saving_waits_for_no_device(streams: DelayedStreams) -> None:
    model, optimizers = build()
    taken: list[SnapshotTaken] = []
    with hf.Checkpointer(
        MemoryStore(),
        model=model,
        optimizer=optimizers,
        save=hf.Never(),
        strategy=hf.Consecutive(),
        settings=SETTINGS,
        on_save=taken.append,
    ) as guard:
        for step in range(6):
            guard.step(loss=train_step(model, optimizers, step))
            waits = streams.waits
            guard.save()
            assert streams.waits == waits
            guard.drain()
        assert guard.stats.drained == 6
        assert sum(event.device_bytes for event in taken) == guard.stats.drained_bytes > 0


def test_a_device_that_fails_costs_that_save_only(streams: DelayedStreams, monkeypatch: pytest.MonkeyPatch) -> None:
    store, (model, optimizers) = MemoryStore(), build()
    options = {"save": hf.Never(), "settings": SETTINGS, "retention": hf.KeepAll()}
    given_up: list[SaveGivenUp] = []

    def fail(device: torch.device) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    with hf.Checkpointer(store, model=model, optimizer=optimizers, on_failure=given_up.append, **options) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
        with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="illegal"):
            broken.setattr(DelayedStreams, "follow", lambda self, device: fail(device))
            guard.save()
        assert len(given_up) == 1 and guard.stats.failed == 1
        guard.step(loss=train_step(model, optimizers, 1))
        guard.save(wait=True)
        state = snapshot(model, optimizers)
    assert check(store, {2: state}) == 1


class SomeOnHost(DelayedStreams):
    """Numbers, such as Adam's steps, are in host memory."""

    def covers(self, tensor: Tensor) -> bool:
        return tensor.dim() > 0


@pytest.mark.parametrize("strategy", [hf.Full(), hf.Consecutive(), hf.Grid()], ids=repr)
def test_state_in_host_memory_is_that_of_the_step(strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    delayed = SomeOnHost()
    monkeypatch.setattr(side_streams, "streams_for", lambda tensors: delayed)
    store = MemoryStore()
    guard, states = train(store, 9, strategy=strategy, overlap=hf.Overlap.WAIT)
    assert check(store, states) == 3
    assert guard.stats.drained == 3 and not guard.stats.device_waits


def test_much_state_in_host_memory_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    delayed = SomeOnHost()
    monkeypatch.setattr(side_streams, "streams_for", lambda tensors: delayed)
    monkeypatch.setattr(staging, "_MOST_HOST_BYTES", 4)
    store = MemoryStore()
    guard, states = train(store, 9, strategy=hf.Consecutive(), overlap=hf.Overlap.WAIT)
    assert check(store, states) == 3
    assert guard.stats.device_waits == 3 and not guard.stats.drained


def test_a_snapshot_that_is_larger_than_the_device_buffer_is_waited_for() -> None:
    store = MemoryStore()
    settings = hf.Settings(handle_sigterm=False, grace_s=0.0, device_buffer_bytes=2000)
    guard, states = train(store, 9, strategy=hf.Full(), overlap=hf.Overlap.WAIT, settings=settings)
    assert check(store, states) == 3
    assert guard.stats.device_waits == 3 and not guard.stats.drained


def test_nothing_is_staged_without_a_device_buffer() -> None:
    store = MemoryStore()
    settings = hf.Settings(handle_sigterm=False, grace_s=0.0, device_buffer_bytes=0)
    guard, states = train(store, 9, strategy=hf.Consecutive(), overlap=hf.Overlap.WAIT, settings=settings)
    assert check(store, states) == 3
    assert not guard.stats.device_waits and not guard.stats.drained


def test_a_loop_that_ends_with_an_error_has_its_last_snapshot_committed(streams: DelayedStreams) -> None:
    store, (model, optimizers) = MemoryStore(), build()
    streams.most_at_once = 0
    with (
        pytest.raises(ZeroDivisionError),
        hf.Checkpointer(store, model=model, optimizer=optimizers, save=hf.EverySteps(3), settings=SETTINGS) as guard,
    ):
        for step in range(4):
            guard.step(loss=train_step(model, optimizers, step))
            state = snapshot(model, optimizers) if step == 2 else {}
            if step == 3:
                raise ZeroDivisionError
            saved = {3: state}
    assert check(store, saved) == 1


def test_an_agent_that_dies_while_a_snapshot_leaves_its_device_costs_that_save_only(
    tmp_path: Path, streams: DelayedStreams
) -> None:
    model, optimizers = build()
    states = {}
    streams.most_at_once = 0  # nothing ever gets there unless somebody waits
    options = {"save": hf.Never(), "strategy": hf.Consecutive(), "settings": SETTINGS, "retention": hf.KeepAll()}
    with hf.Checkpointer(tmp_path / "run", model=model, optimizer=optimizers, **options) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
        guard.save()
        assert guard.agent_pid is not None
        os.kill(guard.agent_pid, signal.SIGKILL)
        with pytest.raises(hf.SaveFailed):
            guard.drain()
        assert guard.stats.agent_deaths == 1
        guard.step(loss=train_step(model, optimizers, 1))
        guard.save(wait=True)
        states[2] = snapshot(model, optimizers)
    assert check(tmp_path / "run", states) == 1


def test_a_snapshot_that_cannot_be_used_is_thrown_away_and_taken_again_at_once() -> None:
    store = MemoryStore()
    torch.manual_seed(0)
    table = torch.nn.EmbeddingBag(3000, 16, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    given_up: list[SaveGivenUp] = []
    with hf.Checkpointer(
        store,
        model=torch.nn.ModuleDict({"table": table}),
        optimizer=optimizer,
        save=hf.Never(),
        strategy=hf.Consecutive(),
        precision=hf.Bits(2),
        settings=SETTINGS,
        on_failure=given_up.append,
    ) as guard:
        guard.save(wait=True)
        table.weight.data[:2000] = torch.inf
        guard.mark("table", range(2000))
        guard.save()
        guard.drain()
        assert guard.stats.thrown_away == 1 and guard.stats.failed == 1 and guard.stats.committed == 2
        assert "2000 rows cannot be encoded" in given_up[0].reason and not given_up[0].retry_s
    rows = hf.open_run(store).read_rows("table", range(2000))["weight"]
    assert torch.equal(rows, table.weight.data[:2000])
