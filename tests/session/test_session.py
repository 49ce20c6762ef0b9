"""The loop a user writes, and the mistakes they make."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain, Draft
from holdfast.checkpoint.commit.changes import own
from holdfast.errors import (
    CheckpointNotFound,
    ConfigurationError,
    ModelMismatch,
    NotResumed,
    RunError,
    StorageFull,
    UnsupportedState,
)
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import Fault, FaultyStore, Operation
from tests.tiny import build, same, snapshot, train_step, uninterrupted

STRATEGIES = [hf.Full(), hf.OneShot(), hf.Consecutive(), hf.Intermittent(), hf.Grid(), hf.Grid(rule=hf.Pairs(0.0))]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def checkpointer(store: Store, model: nn.Module, optimizers: Any, **changes: Any) -> hf.Checkpointer:
    settings = {"save": hf.EverySteps(5), "retention": hf.KeepAll(), "overlap": hf.Overlap.WAIT, **changes}
    return hf.Checkpointer(store, model=model, optimizer=optimizers, **settings)


def train(store: Store, steps: int, **changes: Any) -> dict[int, dict[str, Tensor]]:
    """Train to ``steps`` from wherever the run stands; the state after each step."""
    model, optimizers = build()
    states = {}
    with checkpointer(store, model, optimizers, **changes) as guard:
        guard.resume()
        for step in range(guard.steps, steps):
            guard.step(loss=train_step(model, optimizers, step))
            states[guard.steps] = snapshot(model, optimizers)
    return states


def restored(store: Store, step: int | None = None) -> dict[str, Tensor]:
    model, optimizers = build(seed=99)
    hf.open_run(store).restore(step, model=model, optimizer=optimizers)
    return snapshot(model, optimizers)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_every_kept_checkpoint_is_restored_bit_for_bit(store: MemoryStore, strategy: Any) -> None:
    states = train(store, 33, strategy=strategy)
    kept = [info.step for info in hf.open_run(store).checkpoints()]
    assert kept == [5, 10, 15, 20, 25, 30, 33]
    for step in kept:
        assert same(restored(store, step), states[step])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(store: MemoryStore, strategy: Any) -> None:
    for steps in (7, 8, 21, 40):
        states = train(store, steps, strategy=strategy)
    assert same(states[40], uninterrupted(40))
    assert same(restored(store), uninterrupted(40))


def test_deltas_after_a_resume_hold_what_changed_before_it(store: MemoryStore) -> None:
    train(store, 12, strategy=hf.OneShot())
    states = train(store, 24, strategy=hf.OneShot())
    infos = hf.open_run(store).checkpoints()
    assert {info.base for info in infos[1:]} == {infos[0].id}
    assert same(restored(store, 20), states[20])


def test_a_forgotten_resume_on_a_non_empty_run_is_an_error(store: MemoryStore) -> None:
    train(store, 5)
    model, optimizers = build()
    with pytest.raises(NotResumed, match="step 5"), checkpointer(store, model, optimizers) as guard:
        train_step(model, optimizers, 0)
        guard.step()
    assert len(hf.open_run(store).checkpoints()) == 1


def test_an_empty_run_needs_no_resume(store: MemoryStore) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers) as guard:
        train_step(model, optimizers, 0)
        guard.step()
    assert [info.step for info in hf.open_run(store).checkpoints()] == [1]


def test_going_back_starts_a_new_timeline_and_the_old_one_stays_visible(store: MemoryStore) -> None:
    train(store, 20)
    model, optimizers = build()
    with checkpointer(store, model, optimizers) as guard:
        assert guard.resume(step=10) == 10
        for step in range(10, 15):
            guard.step(loss=train_step(model, optimizers, step + 1000))
        mine = snapshot(model, optimizers)
    infos = hf.open_run(store).checkpoints()
    assert [(info.step, info.abandoned) for info in infos] == [
        (5, False),
        (10, False),
        (15, True),
        (20, True),
        (15, False),
    ]
    assert infos[-1].term == infos[0].term + 1
    assert same(restored(store), mine)
    with checkpointer(store, *build()) as guard, pytest.raises(CheckpointNotFound, match="abandoned"):
        guard.resume(step=20)


def test_accumulated_batches_are_neither_counted_nor_saved(store: MemoryStore) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers, save=hf.EverySteps(2)) as guard:
        for batch in range(12):
            (model(torch.arange(4).reshape(1, 2, 2) + batch)).sum().backward()
            if batch % 3 == 2:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            guard.step()
        assert guard.steps == 4
    assert [info.step for info in hf.open_run(store).checkpoints()] == [2, 4]


def test_metrics_are_stored_and_may_arrive_later(store: MemoryStore) -> None:
    model, optimizers = build()
    policy = hf.KeepLast(1) | hf.KeepBest("auc")
    with checkpointer(store, model, optimizers, retention=policy, strategy=hf.Full()) as guard:
        for step in range(20):
            guard.step(loss=train_step(model, optimizers, step), lr=torch.tensor(0.5))
            if guard.steps % 5 == 0:
                guard.drain()
                guard.annotate(auc=0.9 if guard.steps == 10 else 0.5)
    infos = hf.open_run(store).checkpoints()
    assert [info.step for info in infos] == [10, 20]
    assert infos[0].metrics["auc"] == 0.9
    assert infos[0].metrics["lr"] == 0.5


def test_a_loss_that_is_not_a_number_is_kept_as_such(store: MemoryStore) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers) as guard:
        train_step(model, optimizers, 0)
        guard.step(loss=math.nan)
    assert math.isnan(hf.open_run(store).checkpoints()[0].metrics["loss"])


def test_save_now_with_a_tag(store: MemoryStore) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers) as guard:
        train_step(model, optimizers, 0)
        guard.step()
        assert guard.save(tag="before-the-change", wait=True)
    infos = hf.open_run(store).checkpoints()
    assert [(info.step, info.tag) for info in infos] == [(1, "before-the-change")]


def test_leaving_the_block_with_an_error_drains_and_raises_it(store: MemoryStore) -> None:
    model, optimizers = build()
    with pytest.raises(ZeroDivisionError), checkpointer(store, model, optimizers) as guard:
        for step in range(7):
            guard.step(loss=train_step(model, optimizers, step))
        raise ZeroDivisionError
    assert [info.step for info in hf.open_run(store).checkpoints()] == [5]


def test_close_raises_if_the_last_state_could_not_be_saved(store: MemoryStore) -> None:
    model, optimizers = build()
    faulty = FaultyStore(store, {})
    guard = checkpointer(faulty, model, optimizers, settings=hf.Settings(retry_s=0.1))
    guard.step(loss=train_step(model, optimizers, 0))
    faulty.plan.update(dict.fromkeys(range(faulty.operations + 1, 10_000), Fault.FULL))
    with pytest.raises(hf.SaveFailed, match="StorageFull"):
        guard.close()


def test_a_snapshot_larger_than_the_buffer_waits_is_counted_and_says_what_it_needed(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = nn.EmbeddingBag(200_000, 8, mode="sum", sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    small = hf.Settings(buffer_bytes=2**20, frame_bytes=2**18)
    with checkpointer(store, model, optimizer, settings=small) as guard:
        model(torch.arange(10).reshape(1, 10)).sum().backward()
        optimizer.step()
        with caplog.at_level(logging.WARNING, "holdfast"):
            guard.step()
            guard.save(wait=True)
        assert guard.stats.buffer_waits >= 1
    assert "buffer_bytes=" in caplog.text
    other = nn.EmbeddingBag(200_000, 8, mode="sum", sparse=True)
    hf.open_run(store).restore(model=other, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    assert torch.equal(other.weight, model.weight)


def test_edits_through_data_are_saved_when_marked(store: MemoryStore) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers, strategy=hf.Consecutive()) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
        guard.save(wait=True)
        model.emb[0].weight.data[7] = 42.0
        guard.mark("emb.0", torch.tensor([7]))
        guard.step(loss=train_step(model, optimizers, 1))
        guard.save(wait=True)
        expected = snapshot(model, optimizers)
    assert same(restored(store), expected)
    with checkpointer(store, *build()) as guard:
        guard.resume()
        with pytest.raises(ConfigurationError, match=r"emb\.0"):
            guard.mark("emb.00", torch.tensor([7]))


def test_several_models_and_extras_come_back(store: MemoryStore) -> None:
    def parts() -> tuple[dict[str, nn.Module], list[Any], dict[str, Any]]:
        first, optimizers = build(0)
        second, more = build(1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizers[1], step_size=2)
        average = torch.optim.swa_utils.AveragedModel(nn.Linear(3, 2))
        models = {"user": first, "item": second}
        return models, [*optimizers, *more], {"scheduler": scheduler, "ema": average}

    models, optimizers, extra = parts()
    with checkpointer(store, models, optimizers, extra=extra) as guard:  # type: ignore[arg-type]
        for step in range(6):
            train_step(models["user"], optimizers[:2], step)
            train_step(models["item"], optimizers[2:], step)
            extra["scheduler"].step()
            extra["ema"].update_parameters(nn.Linear(3, 2))
            guard.step()
    again, other_optimizers, other_extra = parts()
    with checkpointer(store, again, other_optimizers, extra=other_extra) as guard:  # type: ignore[arg-type]
        assert guard.resume() == 6
    for name in models:
        assert same(snapshot(again[name], []), snapshot(models[name], []))
    assert other_extra["scheduler"].state_dict() == extra["scheduler"].state_dict()
    assert other_extra["ema"].n_averaged == 6
    names = [spec.name for spec in hf.open_run(store).tables()]
    assert names == ["user.emb.0", "user.emb.1", "item.emb.0", "item.emb.1"]


def test_transfer_learning_restores_what_fits_and_tells_the_rest(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    states = train(store, 10)
    model, optimizers = build(seed=5, rows=(300, 77))
    with checkpointer(store, model, optimizers) as guard, pytest.raises(ModelMismatch, match=r"emb\.1"):
        guard.resume()
    with checkpointer(store, model, optimizers) as guard:
        assert guard.resume(reader=False, strict=False) == 10
    assert "emb.1 (shape differs)" in caplog.text
    assert torch.equal(model.emb[0].weight, states[10]["emb.0.weight"])
    assert model.emb[1].weight.shape[0] == 77


def test_state_that_cannot_be_stored_is_refused_before_training(store: MemoryStore) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"callback": lambda: None}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            raise AssertionError

    model, optimizers = build()
    with pytest.raises(UnsupportedState, match="callback"):
        checkpointer(store, model, optimizers, extra={"odd": Odd()})


def test_an_unknown_url_scheme_is_named_with_the_known_ones() -> None:
    model, optimizers = build()
    with pytest.raises(ConfigurationError, match="s3"):
        hf.Checkpointer("ftp://example/run", model=model, optimizer=optimizers)


def test_resume_comes_once_and_nothing_works_after_close(store: MemoryStore) -> None:
    guard = checkpointer(store, *build())
    guard.resume()
    with pytest.raises(RunError, match="once"):
        guard.resume()
    guard.close()
    guard.close()
    with pytest.raises(RunError, match="closed"):
        guard.step()


@pytest.mark.parametrize("overlap", list(hf.Overlap))
def test_no_row_is_lost_whatever_happens_when_saves_overlap(store: MemoryStore, overlap: hf.Overlap) -> None:
    states = train(store, 60, save=hf.EverySteps(1), overlap=overlap, strategy=hf.Consecutive())
    infos = hf.open_run(store).checkpoints()
    assert infos[-1].step == 60
    for info in infos:
        assert same(restored(store, info.step), states[info.step])


class CountingReader:
    """Reads ahead as far as it is granted, and its state counts what was read, not what was handed out."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._granted = 0
        self._read = 0
        self.largest_gap = 0
        self.handed_out = 0

    def grant(self, batches: int) -> None:
        self._granted = batches

    def __iter__(self) -> Iterator[int]:
        while self._read < self._batches:
            ahead = list(range(self._read, min(self._read + self._granted, self._batches)))
            self._read += len(ahead)
            self._granted = 0
            self.largest_gap = max(self.largest_gap, len(ahead))
            yield from ahead

    def state_dict(self) -> dict[str, Any]:
        return {"read": self._read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._read = state["read"]


def test_a_reader_that_reads_ahead_has_nothing_in_flight_across_a_checkpoint(store: MemoryStore) -> None:
    seen: list[int] = []
    for kill_at in (8, 17, None):
        model, optimizers = build()
        reader = CountingReader(30)
        guard = checkpointer(store, model, optimizers, loader=reader, save=hf.EverySteps(5))
        del seen[guard.resume() :]
        for batch in guard.batches(epochs=1):
            seen.append(batch)
            guard.step(loss=train_step(model, optimizers, batch))
            if guard.steps == kill_at:
                break
        else:
            guard.close()
            continue
        guard.drain()
        guard.__exit__(RuntimeError, RuntimeError(), None)
    assert seen == list(range(30))
    assert reader.largest_gap == 5
    assert same(restored(store), uninterrupted(30))


def test_the_public_names_are_few_and_all_there() -> None:
    assert "Checkpointer" in hf.__all__
    for name in hf.__all__:
        assert getattr(hf, name) is not None
    with pytest.raises(AttributeError):
        _ = hf.no_such_name  # type: ignore[attr-defined]


def test_a_local_path_object_works_too(tmp_path: Path) -> None:
    model, optimizers = build()
    with hf.Checkpointer(tmp_path / "run", model=model, optimizer=optimizers) as guard:
        guard.resume()
        guard.step(loss=train_step(model, optimizers, 0))
    assert [info.step for info in hf.open_run(tmp_path / "run").checkpoints()] == [1]


def test_a_save_that_fails_leaves_no_rows_behind_on_a_full_disk(store: MemoryStore) -> None:
    full = False

    def refuse_manifests(operation: Operation) -> None:
        if full and operation.kind == "put" and "/part-" in operation.name:
            raise StorageFull(operation.name)

    model, optimizers = build()
    options = {"save": hf.Never(), "strategy": hf.Consecutive()}
    with checkpointer(FaultyStore(store, before=refuse_manifests), model, optimizers, **options) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
        guard.save(wait=True)
        before = {info.name for info in store.list("data/")}
        full = True
        guard.step(loss=train_step(model, optimizers, 1))
        with pytest.raises(hf.SaveFailed, match="StorageFull"):
            guard.save(wait=True)
        full = False
        guard.save(wait=True)
        rest = {info.name for info in store.list("data/")} - before
        assert sum(name.endswith(".safetensors") for name in rest) == 1
    assert same(restored(store), snapshot(model, optimizers))


@pytest.mark.parametrize(
    ("argument", "value", "remedy"),
    [
        ("save", 1000, "hf.EverySteps(1000)"),
        ("save", "10m", "hf.EveryMinutes(10)"),
        ("retention", 3, "hf.KeepLast(3)"),
        ("strategy", hf.OneShot, "OneShot()"),
        ("overlap", "wait", "hf.Overlap.WAIT"),
        ("settings", None, "a Settings"),
    ],
)
def test_a_wrong_argument_is_named_with_its_remedy_when_the_checkpointer_is_created(
    store: MemoryStore, argument: str, value: object, remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"{argument}={value!r} is not valid; pass {remedy}")):
        checkpointer(store, *build(), **{argument: value})


def test_a_wrong_model_or_optimizer_is_refused(store: MemoryStore) -> None:
    model, optimizers = build()
    with pytest.raises(ConfigurationError, match="model="):
        checkpointer(store, [model], optimizers)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="optimizer="):
        checkpointer(store, model, model)


@pytest.mark.parametrize("value", [torch.zeros(3), None, "high"])
def test_a_metric_that_is_no_number_is_refused_in_its_own_step(store: MemoryStore, value: Any) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers, save=hf.Never()) as guard:
        train_step(model, optimizers, 0)
        with pytest.raises(ConfigurationError, match="auc"):
            guard.step(auc=value)


def test_a_metric_belongs_to_the_step_it_was_given_in(store: MemoryStore) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers) as guard:
        for step in range(10):
            metrics = {"auc": 0.9} if step == 4 else {}
            guard.step(loss=train_step(model, optimizers, step), **metrics)
    assert ["auc" in info.metrics for info in hf.open_run(store).checkpoints()] == [True, False]


def test_a_loader_that_is_not_asked_through_batches_is_told(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    model, optimizers = build()
    loader = StatefulDataLoader(list(range(6)), batch_size=None)
    with checkpointer(store, model, optimizers, loader=loader) as guard:
        for batch in loader:
            guard.step(loss=train_step(model, optimizers, int(batch)))
    assert "no batch was taken from batches()" in caplog.text


def test_a_mistyped_step_fences_nobody(store: MemoryStore) -> None:
    train(store, 5)
    term = hf.open_run(store).head().catalog.term
    with checkpointer(store, *build()) as guard, pytest.raises(CheckpointNotFound, match="step 6"):
        guard.resume(step=6)
    assert hf.open_run(store).head().catalog.term == term


def test_a_url_of_this_process_works_with_an_agent_on_a_thread() -> None:
    model, optimizers = build()
    with hf.Checkpointer("memory://session-test", model=model, optimizer=optimizers) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
    assert [info.step for info in hf.open_run("memory://session-test").checkpoints()] == [1]


def test_an_abandoned_checkpoint_is_read_by_its_id(store: MemoryStore) -> None:
    states = train(store, 10)
    model, optimizers = build()
    with checkpointer(store, model, optimizers) as guard:
        guard.resume(step=5)
        for step in range(5):
            guard.step(loss=train_step(model, optimizers, 500 + step))
    abandoned = next(info for info in hf.open_run(store).checkpoints() if info.abandoned)
    other, others = build(seed=3)
    hf.open_run(store).restore(abandoned.id, model=other, optimizer=others)
    assert same(snapshot(other, others), states[10])


def test_the_run_recovers_when_what_it_stood_on_was_dropped(store: MemoryStore) -> None:
    model, optimizers = build()
    with checkpointer(store, model, optimizers, save=hf.Never(), strategy=hf.OneShot()) as guard:
        guard.step(loss=train_step(model, optimizers, 0))
        guard.save(wait=True)
        Chain(store).commit(lambda head: Draft(reason="drop", term=own(head, None).catalog.term, head=None, entries=()))
        guard.step(loss=train_step(model, optimizers, 1))
        with pytest.raises(hf.SaveFailed, match="no longer in the run"):
            guard.save(wait=True)
        guard.save(wait=True)
    assert same(restored(store), snapshot(model, optimizers))
