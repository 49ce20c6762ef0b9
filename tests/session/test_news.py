"""close() saves whatever differs from the last checkpoint, and nothing where nothing does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import update_bn
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from holdfast.policy import Precision, Strategy
from holdfast.storage import MemoryStore

SETTINGS = hf.Settings(handle_sigterm=False, buffer_bytes=2**18, frame_bytes=2**16)
ODDITIES = [-0.0, float("nan"), 1.0, 1]


class Model(nn.Module):
    """A table, a norm with buffers, a dense layer that spans several frames."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb = nn.EmbeddingBag(50, 4, sparse=True, mode="sum")
        self.norm = nn.BatchNorm1d(4)
        self.wide = nn.Linear(4, 10000)
        self.top = nn.Linear(10000, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.wide(self.norm(self.emb(ids))))


class Notes:
    """An extra with values that are no tensors."""

    def __init__(self) -> None:
        self.value: Any = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


@dataclass
class Training:
    """A model in training, its loader and its extras."""

    model: Model = field(default_factory=Model)
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        dense = [parameter for name, parameter in self.model.named_parameters() if not name.startswith("emb")]
        self.optimizers: list[Optimizer] = [Adagrad(self.model.emb.parameters(), lr=0.1), SGD(dense, lr=1e-4)]
        self.scheduler = StepLR(self.optimizers[1], step_size=1)
        self.loader = StatefulDataLoader(torch.arange(400).reshape(100, 4) % 50, batch_size=5)

    def step(self, ids: Tensor) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        self.model(ids).square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def state(self) -> dict[str, Any]:
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return {**weights, "lr": self.optimizers[1].param_groups[0]["lr"], "notes": repr(self.notes.value)}


@contextmanager
def guarded(store: MemoryStore, training: Training, **arguments: Any) -> Iterator[hf.Checkpointer]:
    with hf.Checkpointer(
        store,
        model=training.model,
        optimizer=training.optimizers,
        loader=training.loader,
        extra={"scheduler": training.scheduler, "notes": training.notes},
        **{
            "save": hf.EverySteps(2),
            "retention": hf.KeepAll(),
            "overlap": hf.Overlap.WAIT,
            "settings": SETTINGS,
            **arguments,
        },
    ) as guard:
        guard.resume()
        yield guard


def train(guard: hf.Checkpointer, training: Training, steps: int) -> None:
    batches = guard.batches(epochs=None)
    for _ in range(steps):
        training.step(next(batches))
        guard.step()
    guard.drain()


def saved_steps(store: MemoryStore) -> list[int]:
    return [info.step for info in hf.open_run(store).checkpoints()]


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) if isinstance(value, Tensor) else value == second[name]
        for name, value in first.items()
    )


def edit(change: Callable[[Training], Any]) -> Callable[[Training], None]:
    def within(training: Training) -> None:
        with torch.no_grad():
            change(training)

    return within


def evaluate_buffers(training: Training) -> None:
    update_bn([torch.arange(20).reshape(5, 4)], training.model)


CHANGES: dict[str, Callable[[Training], None]] = {
    "a table is halved": edit(lambda training: training.model.emb.weight.div_(2)),
    "a slot is cleared": edit(lambda training: training.optimizers[0].state[training.model.emb.weight]["sum"].zero_()),
    "a dense weight is halved": edit(lambda training: training.model.wide.weight.div_(2)),
    "one number behind torch's back": edit(lambda training: training.model.wide.weight.data[-1, -1].add_(1e-6)),
    "buffers of a norm": evaluate_buffers,
    "a scheduler": lambda training: training.scheduler.step(),
    "a learning rate": lambda training: training.optimizers[1].param_groups[0].update(lr=0.05),
    "a number in an extra": lambda training: setattr(training.notes, "value", -0.0),
    "its type": lambda training: setattr(training.notes, "value", 0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_after_the_last_save_is_saved_at_the_end(change: Callable[[Training], None]) -> None:
    store, training = MemoryStore(), Training()
    with guarded(store, training) as guard:
        train(guard, training, 4)
        change(training)
        wanted = training.state()
    assert saved_steps(store) == [2, 4, 4]
    again = Training()
    with guarded(store, again):
        assert same(again.state(), wanted)
    assert saved_steps(store) == [2, 4, 4]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_after_a_resume_is_saved_at_the_end(change: Callable[[Training], None]) -> None:
    store, training = MemoryStore(), Training()
    with guarded(store, training) as guard:
        train(guard, training, 4)
    again = Training()
    with guarded(store, again):
        change(again)
        wanted = again.state()
    assert saved_steps(store) == [2, 4, 4]
    last = Training()
    with guarded(store, last):
        assert same(last.state(), wanted)


@pytest.mark.parametrize("precision", [hf.Exact(), hf.Bits(4), hf.Bits(2, difference=True)], ids=repr)
@pytest.mark.parametrize("strategy", [hf.Full(), hf.OneShot(), hf.Consecutive(), hf.Grid()], ids=repr)
def test_neither_a_restore_nor_a_look_is_news(strategy: Strategy, precision: Precision) -> None:
    store, arguments = MemoryStore(), {"strategy": strategy, "precision": precision}
    training = Training()
    with guarded(store, training, **arguments) as guard:
        train(guard, training, 4)
        training.state()
        torch.rand(3)
    assert saved_steps(store) == [2, 4]
    for _ in range(2):
        again = Training()
        with guarded(store, again, **arguments) as guard:
            next(guard.batches(epochs=None))
            again.model.eval()(torch.arange(4)[None])
    assert saved_steps(store) == [2, 4]


def test_a_model_without_its_optimizer_is_looked_at_and_left_as_it_is() -> None:
    store, training = MemoryStore(), Training()
    with guarded(store, training) as guard:
        train(guard, training, 2)
    with hf.Checkpointer(store, model=Model(), settings=SETTINGS) as guard:
        guard.resume()
    assert saved_steps(store) == [2]


def test_a_save_that_the_user_asked_for_is_not_repeated() -> None:
    store, training = MemoryStore(), Training()
    with guarded(store, training, save=hf.Never()) as guard:
        train(guard, training, 3)
        training.scheduler.step()
        guard.save(tag="final", wait=True)
    assert [(info.step, info.tag) for info in hf.open_run(store).checkpoints()] == [(3, "final")]


def test_values_that_equal_nothing_are_no_news_either() -> None:
    store, training = MemoryStore(), Training()
    training.notes.value = ODDITIES
    with guarded(store, training) as guard:
        train(guard, training, 2)
    with guarded(store, again := Training()):
        assert repr(again.notes.value) == repr(ODDITIES)
    assert saved_steps(store) == [2]
