"""Runs whose differences a device makes, which here is the host: every checkpoint holds what the agent would have made.

What they must hold is worked out by ``tests.shelf``, which knows nothing of devices.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import holdfast as hf
from holdfast.checkpoint.snapshot import device_baselines, side_streams
from holdfast.checkpoint.snapshot.device_baselines import DeviceBaselines
from holdfast.errors import StorageUnavailable
from holdfast.kernels.quantize import tensors
from holdfast.kernels.quantize.baseline import BaselineRows
from holdfast.storage import MemoryStore
from holdfast.testing.faults import FaultyStore, Operation
from holdfast.types import Kind
from tests.checkpoint.snapshot.delayed_streams import DelayedStreams
from tests.session.test_precision import STRATEGIES, Run
from tests.shelf import ROWS, build, live, train

SETTINGS = hf.Settings(handle_sigterm=False, grace_s=0.0, device_baseline_bytes=2**20)
PRECISIONS = {
    "2 bits": hf.Bits(2, difference=True),
    "3 bits": hf.Bits(3, difference=True),
    "4 bits, published": hf.Bits(4, difference=True, method="published"),
    "8 bits": hf.Bits(8, difference=True),
    "2 bits, symmetric": hf.Bits(2, difference=True, method="symmetric"),
    "one table": hf.PerTable(hf.Exact(), {"item": hf.Bits(3, difference=True)}),
}

Made = list[tuple[int, bool]]  # a table whose rows are differences, and whether its device makes them


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """All tensors are as if on a device, which encodes; who makes the differences of each save of a table."""
    found: Made = []

    class Watched(DeviceBaselines):
        def of(self, table: int, checkpoint: str | None) -> BaselineRows | None:
            base = super().of(table, checkpoint)
            found.append((table, base is not None))
            return base

    delayed = DelayedStreams()
    monkeypatch.setattr(side_streams, "streams_for", lambda tensors: delayed)
    monkeypatch.setattr(tensors, "is_cheap", lambda table, scheme: tensors.is_plain(table))
    monkeypatch.setattr("holdfast.checkpoint.trainer.assembly.DeviceBaselines", Watched)
    yield found


def train_on(run: Run, steps: range, **options: Any) -> None:
    run.life(steps, settings=SETTINGS, **options)


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize("strategy", ["one_shot", "consecutive", "intermittent", "grid"])
def test_every_checkpoint_holds_the_agents_differences(strategy: str, precision: hf.Bits, made: Made) -> None:
    run = Run(MemoryStore(), STRATEGIES[strategy], precision, optimizer="adagrad")
    train_on(run, range(0, 7))
    run.check()
    tables = {0} if isinstance(precision, hf.PerTable) else {0, 1}
    assert {table for table, on_device in made if on_device} == tables and all(on_device for _, on_device in made)


def test_rows_that_no_record_of_the_baseline_holds_are_differed_from_as_they_are(made: Made) -> None:
    run = Run(MemoryStore(), hf.Consecutive(), PRECISIONS["2 bits"])
    model, optimizer = build()
    with torch.no_grad():
        model["item"].weight[:40:2, 3] = torch.tensor([torch.nan, torch.inf, 3e38, -torch.inf] * 5)
        model["item"].weight[1:40:2] = 7.0 + 1e-3 * torch.randn(20, 16)
        model["item"].weight[40:50] = torch.arange(10.0)[:, None]
    wanted = {}
    with run.guard(model, optimizer, SETTINGS) as guard:
        for step in range(4):
            changed = dict(train(model, optimizer, step))
            marked = torch.arange(0, 60, step + 1)
            model["item"].weight.data[marked] += 0.01 * step
            guard.mark("item", marked)
            changed["item"] = torch.cat([changed["item"], marked]).unique()
            guard.step()
            guard.save(wait=True)
            kind = hf.open_run(run.store).checkpoints()[-1].kind
            state = {(name, "weight"): model[name].weight.detach().clone() for name in ROWS}
            wanted[step + 1] = run.shelf.save(kind, state, changed)
    for info in hf.open_run(run.store).checkpoints():
        found = hf.open_run(run.store).read_rows("item", range(ROWS["item"]), step=info.step)["weight"]
        assert torch.equal(found.view(torch.int32), wanted[info.step]["item", "weight"].view(torch.int32))
    assert (0, True) in made


def test_a_baseline_with_more_such_rows_than_there_is_room_for_is_the_agents(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_baselines, "_LEAST_ESCAPES", 3)
    run = Run(MemoryStore(), hf.Consecutive(), PRECISIONS["2 bits"])
    model, optimizer = build()
    model["item"].weight.data[:10] = torch.inf
    with run.guard(model, optimizer, SETTINGS) as guard:
        for step in range(3):
            train(model, optimizer, step)
            guard.step()
            guard.save(wait=True)
    assert not hf.open_run(run.store).verify()
    assert (0, False) in made and (0, True) not in made and (1, True) in made


def test_after_a_resume_the_agent_makes_differences_until_the_next_baseline(made: Made) -> None:
    run = Run(MemoryStore(), hf.Intermittent(), PRECISIONS["2 bits"])
    train_on(run, range(0, 3))
    made.clear()
    kinds = run.life(range(3, 12), settings=SETTINGS, resume=True)
    run.check()
    first = kinds.index(Kind.FULL) if Kind.FULL in kinds else len(kinds)
    assert [on_device for _, on_device in made] == [False] * 2 * first + [True] * (len(made) - 2 * first)
    assert first


def test_a_table_that_was_saved_whole_above_its_baseline_is_differed_from_no_more(made: Made) -> None:
    run = Run(MemoryStore(), hf.Consecutive(), PRECISIONS["3 bits"])
    train_on(run, range(0, 6), whole_at=3)
    run.check()
    assert made == [
        (0, True),
        (1, True),
        (1, True),
        (0, False),
        (1, True),
        (0, False),
        (1, True),
        (0, False),
        (1, True),
    ]


def test_going_back_in_the_same_process_leaves_the_baseline_good(made: Made) -> None:
    run = Run(MemoryStore(), hf.Consecutive(), PRECISIONS["2 bits"])
    model, optimizer = build()
    with run.guard(model, optimizer, SETTINGS) as guard:
        for step in range(3):
            train(model, optimizer, step)
            guard.step()
            guard.save(wait=True)
        guard.recover_fully()
        train(model, optimizer, 9)
        guard.step()
        guard.save(wait=True)
        rows = model["item"].weight.detach().clone()
    assert all(on_device for _, on_device in made) and len(made) == 6
    found = hf.open_run(run.store).read_rows("item", range(ROWS["item"]))["weight"]
    assert (found - rows).abs().max() < 0.2 and not hf.open_run(run.store).verify()


def test_after_a_save_that_failed_the_agent_makes_the_differences_of_the_next_one(made: Made) -> None:
    broken = False

    def refuse(operation: Operation) -> None:
        if broken and operation.kind == "put":
            raise StorageUnavailable("no")

    store = MemoryStore()
    run = Run(FaultyStore(store, before=refuse), hf.Consecutive(), PRECISIONS["2 bits"])
    settings = hf.Settings(handle_sigterm=False, grace_s=0.0, device_baseline_bytes=2**20, retry_s=0.0)
    model, optimizer = build()
    changed = {name: torch.empty(0, dtype=torch.int64) for name in ROWS}
    with run.guard(model, optimizer, settings) as guard:
        for step in range(6):
            ids = train(model, optimizer, step)
            changed = {name: torch.cat([changed[name], ids[name]]).unique() for name in ROWS}
            guard.step()
            broken = step == 2
            guard.save()
            if broken:
                with pytest.raises(hf.SaveFailed):
                    guard.drain()
                continue
            guard.drain()
            wanted = run.shelf.save(Kind.INCREMENTAL if step else Kind.FULL, live(model, optimizer), changed)
            changed = {name: ids[:0] for name, ids in changed.items()}
    assert made == [(0, True), (1, True)] * 2 + [(0, False), (1, False)] + [(0, True), (1, True)] * 2
    for name, rows in ROWS.items():
        found = hf.open_run(store).read_rows(name, range(rows))["weight"]
        assert torch.equal(found, wanted[name, "weight"])
    assert not hf.open_run(store).verify()


def test_tables_without_room_are_the_agents_and_that_is_told_once(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")
    run = Run(MemoryStore(), hf.Consecutive(), PRECISIONS["2 bits"])
    run.life(range(0, 3), settings=hf.Settings(handle_sigterm=False, grace_s=0.0, device_baseline_bytes=2000))
    run.check()
    assert not any(on_device for table, on_device in made if table == 0)
    told = [each for each in caplog.messages if "no room on the device" in each]
    assert len(told) == 1 and "device_baseline_bytes" in told[0]


def test_without_the_setting_nothing_is_kept_on_a_device(made: Made) -> None:
    run = Run(MemoryStore(), hf.Consecutive(), PRECISIONS["2 bits"])
    run.life(range(0, 3))
    run.check()
    assert not made
