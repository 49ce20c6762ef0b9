"""Loops that count epochs themselves: ``one_pass()`` gives one epoch at a time, whole, cut short or after a resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from holdfast.errors import ConfigurationError, ReaderError, Terminated
from holdfast.storage import MemoryStore
from tests.tiny import build, train_step

BATCHES = 10
LOADERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: DataLoader(TensorDataset(torch.arange(40)), batch_size=4, shuffle=True),
    "stateful": lambda: StatefulDataLoader(TensorDataset(torch.arange(40)), batch_size=4, shuffle=True),
}

pytestmark = pytest.mark.filterwarnings("ignore")


def train(store: MemoryStore, make: Callable[[], Any], length: int, *, epochs: int, until: int | None = None) -> Any:
    """Epochs of at most ``length`` batches, and the ids of each batch."""
    torch.manual_seed(7)
    model, optimizers = build()
    seen: list[list[int]] = []
    with hf.Checkpointer(
        store, model=model, optimizer=optimizers, loader=make(), save=hf.Never(), settings=hf.Settings(grace_s=0.0)
    ) as guard:
        guard.resume()
        while guard.steps < length * epochs:
            for (numbers,) in guard.one_pass():
                seen.append(numbers.tolist())
                guard.step(loss=train_step(model, optimizers, guard.steps))
                if guard.steps % length == 0 or guard.steps == until:
                    break
            if guard.steps == until:
                break
    return seen


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("length", [4, BATCHES])
def test_epochs_that_end_early_continue_where_they_were(make: Callable[[], Any], length: int) -> None:
    expected = train(MemoryStore(), make, length, epochs=3)
    store = MemoryStore()
    parts = [train(store, make, length, epochs=3, until=until) for until in (2, length + 1, 2 * length + 3, None)]
    assert [batch for part in parts for batch in part] == expected
    if length == BATCHES:
        assert sorted(number for batch in expected[:length] for number in batch) == [*range(40)]


def test_an_epoch_that_is_over_can_be_left_after_a_resume() -> None:
    store = MemoryStore()
    train(store, LOADERS["plain"], BATCHES, epochs=1, until=4)
    model, optimizers = build()
    with hf.Checkpointer(store, model=model, optimizer=optimizers, loader=LOADERS["plain"]()) as guard:
        guard.resume()
        assert len(list(guard.one_pass(anew=True))) == BATCHES


def test_two_loops_at_once_are_refused() -> None:
    with hf.Checkpointer(MemoryStore(), model=build()[0], loader=LOADERS["plain"]()) as guard:
        first = guard.one_pass()
        next(first)
        with pytest.raises(ReaderError, match="already being iterated"):
            guard.one_pass()


def test_a_pass_needs_a_loader() -> None:
    with hf.Checkpointer(MemoryStore(), model=build()[0]) as guard, pytest.raises(ConfigurationError, match="one_pass"):
        guard.one_pass()


def test_a_training_that_is_told_to_terminate_saves_at_its_next_step() -> None:
    store = MemoryStore()
    model, optimizers = build()
    settings = hf.Settings(handle_sigterm=False)
    with (
        pytest.raises(Terminated),
        hf.Checkpointer(store, model=model, optimizer=optimizers, save=hf.Never(), settings=settings) as guard,
    ):
        for step in range(10):
            train_step(model, optimizers, step)
            if step == 3:
                guard.terminate()
            guard.step()
    assert [info.step for info in hf.open_run(store).checkpoints()] == [4]
