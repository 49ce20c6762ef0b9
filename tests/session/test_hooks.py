"""What hooks are told of a training, and when."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import holdfast as hf
from holdfast.errors import StorageFull
from holdfast.events import Happening, Recovery, SaveCommitted, SaveGivenUp, SnapshotTaken
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import FaultyStore, Operation
from holdfast.types import Kind
from tests.tiny import build, same, snapshot, train_step, uninterrupted


class Listener:
    """All four hooks, and what they were told."""

    def __init__(self) -> None:
        self.events: dict[type, list[Any]] = defaultdict(list)
        self.threads: set[threading.Thread] = set()

    def __call__(self, event: Any) -> None:
        self.events[type(event)].append(event)
        self.threads.add(threading.current_thread())

    @property
    def hooks(self) -> dict[str, Any]:
        return dict.fromkeys(("on_save", "on_commit", "on_failure", "on_recover"), self)


def train(store: Store, steps: int, **changes: Any) -> hf.Checkpointer:
    model, optimizers = build()
    options = {"save": hf.EverySteps(5), "retention": hf.KeepAll(), "overlap": hf.Overlap.WAIT, **changes}
    with hf.Checkpointer(store, model=model, optimizer=optimizers, **options) as guard:
        guard.resume()
        for step in range(guard.steps, steps):
            guard.step(loss=train_step(model, optimizers, step))
    return guard


def test_every_save_and_its_commit_are_told_as_the_run_lists_them() -> None:
    store, listener = MemoryStore(), Listener()
    train(store, 12, **listener.hooks)
    taken, committed = listener.events[SnapshotTaken], listener.events[SaveCommitted]
    checkpoints = hf.open_run(store).checkpoints()
    assert [event.info for event in committed] == checkpoints
    assert [(event.checkpoint, event.step, event.kind) for event in taken] == [
        (info.id, info.step, info.kind) for info in checkpoints
    ]
    assert all(event.stall_s >= 0 and event.at_s > 0 for event in taken)
    assert listener.events.keys() == {SnapshotTaken, SaveCommitted}
    assert listener.threads == {threading.current_thread()}
    with pytest.raises(FrozenInstanceError):
        taken[0].step = 3


def test_a_fresh_start_recovers_nothing_and_a_resume_is_told() -> None:
    store, listener = MemoryStore(), Listener()
    train(store, 5, **listener.hooks)
    assert listener.events[Recovery] == []
    train(store, 6, **listener.hooks)
    (event,) = listener.events[Recovery]
    (_, took_over) = hf.open_run(store).history()
    assert (event.what, event.term, event.step) == (Happening.TOOK_OVER, took_over.term, took_over.from_step)
    assert (event.checkpoint_step, event.lost_share, event.pls) == (5, 1.0, None)


def test_a_failed_save_is_told_with_its_reason_and_the_next_one_committed() -> None:
    listener, full = Listener(), True

    def refuse(operation: Operation) -> None:
        if full and operation.kind == "put" and operation.name.startswith("data/"):
            raise StorageFull("no room")

    model, optimizers = build()
    store = FaultyStore(MemoryStore(), before=refuse)
    with hf.Checkpointer(store, model=model, optimizer=optimizers, **listener.hooks) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
        with pytest.raises(hf.SaveFailed):
            guard.save(wait=True)
        (event,) = listener.events[SaveGivenUp]
        full = False
    assert (event.step, event.kind, event.last_commit_step) == (1, Kind.FULL, None)
    assert event.checkpoint == listener.events[SnapshotTaken][0].checkpoint
    assert "no room" in event.reason and event.retry_s > 0
    assert [each.info.step for each in listener.events[SaveCommitted]] == [1]


def test_recoveries_of_a_part_and_of_everything_are_told() -> None:
    listener = Listener()
    model, optimizers = build()
    strategy = hf.Partial(priority=None, budget=hf.PLS(0.5, total_samples=100, samples_per_step=1))
    options = {"save": hf.EverySteps(4), "strategy": strategy, "overlap": hf.Overlap.WAIT, **listener.hooks}
    with hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizers, **options) as guard:
        for step in range(6):
            guard.step(loss=train_step(model, optimizers, step))
        guard.drain()  # the save of step 4 is what a recovery goes back to
        guard.recover([1], of=4)
        guard.recover_fully()
    part, whole = listener.events[Recovery]
    assert (part.what, part.step, part.lost_share) == (Happening.RECOVERED_PART, 6, 0.25)
    assert part.pls == pytest.approx(0.25 * 2 / 100)
    assert (whole.what, whole.step, whole.lost_share) == (Happening.WENT_BACK, 4, 1.0)


def test_a_hook_may_use_the_checkpointer_also_for_the_last_commit() -> None:
    store = MemoryStore()
    model, optimizers = build()

    def evaluate(event: SaveCommitted) -> None:
        guard.annotate(auc=event.info.step / 100)

    with hf.Checkpointer(
        store,
        model=model,
        optimizer=optimizers,
        save=hf.EverySteps(5),
        retention=hf.KeepAll(),
        overlap=hf.Overlap.WAIT,
        on_commit=evaluate,
    ) as guard:
        for step in range(7):
            guard.step(loss=train_step(model, optimizers, step))
            guard.drain()
    assert [info.metrics["auc"] for info in hf.open_run(store).checkpoints()] == [0.05, 0.07]


def test_hooks_that_raise_change_nothing_in_the_training() -> None:
    def fail(event: object) -> None:
        raise RuntimeError("broken exporter")

    store = MemoryStore()
    names = ("on_save", "on_commit", "on_failure", "on_recover")
    for steps in (7, 12):
        train(store, steps, **dict.fromkeys(names, fail))
    model, optimizers = build(seed=9)
    hf.open_run(store).restore(model=model, optimizer=optimizers)
    assert same(snapshot(model, optimizers), uninterrupted(12))
