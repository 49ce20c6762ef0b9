"""A checkpoint holds the place in the data that belongs to its weights, whoever takes the batches and leaves when."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from holdfast.storage import MemoryStore
from tests.tiny import build, ids_of, same, snapshot, train_step

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital.*")
SAMPLES = 17


class Noisy(Dataset[Any]):
    """Draws a random number for each sample, as negative sampling would."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()


class OwnLoader:
    """Batches of numbers, with a state that somebody changes after it was given out."""

    def __init__(self) -> None:
        self.state = {"next": 0}

    def __iter__(self) -> Iterator[Any]:
        self.state["next"] %= SAMPLES
        while self.state["next"] < SAMPLES:
            self.state["next"] += 1
            yield torch.tensor([self.state["next"]]), torch.tensor([random.random()])

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def shuffled() -> Any:
    return StatefulDataLoader(Noisy(), batch_size=1, shuffle=True)


def one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """Takes a batch before it gives the last one, as consumers do that must know which one is the last."""
    source = iter(batches)
    held = list(itertools.islice(source, 1))
    for batch in source:
        yield held.pop()
        held.append(batch)
    yield from held


def three_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    source = iter(batches)
    queue = list(itertools.islice(source, 4))
    while queue:
        yield queue.pop(0)
        queue += itertools.islice(source, 1)


def directly(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


class Training:
    """A loop that accumulates, and draws random numbers of its own; what went into each optimizer step is its trace."""

    def __init__(self, store: MemoryStore, make: Callable[[], Any], consumer: Callable[..., Any], every: int) -> None:
        random.seed(4)
        self.model, self.optimizers = build()
        self.consumer, self.every = consumer, every
        self.guard = hf.Checkpointer(
            store,
            model=self.model,
            optimizer=self.optimizers,
            loader=make(),
            save=hf.EverySteps(2),
            overlap=hf.Overlap.WAIT,
            retention=hf.KeepAll(),
        )
        self.trace: list[Any] = []

    def run(self, epochs: int, batches: int | None = None) -> None:
        with self.guard as guard:
            guard.resume()
            self.loop(self.consumer(guard.batches(epochs)), batches)

    def loop(self, batches: Iterable[Any], limit: int | None) -> None:
        pending: list[Any] = []
        for number, (ids, noise) in enumerate(itertools.islice(batches, limit), start=1):
            drawn = torch.rand(1)
            pending.append((ids.tolist(), noise.tolist(), drawn.item()))
            loss = (self.model(ids_of(int(ids))) * drawn).sum() * noise.sum()
            loss.backward()
            if number % self.every == 0:
                step_all(self.optimizers)
                self.trace.append(pending)
                pending = []
            self.guard.step(loss=loss)


def step_all(optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(
    ("make", "consumer"),
    [
        (shuffled, directly),
        (shuffled, one_ahead),
        (shuffled, three_ahead),
        (OwnLoader, directly),
        (OwnLoader, one_ahead),
    ],
)
def test_a_loop_left_anywhere_goes_on_with_what_its_weights_lack(
    make: Callable[[], Any], consumer: Callable[..., Any], every: int
) -> None:
    undisturbed = Training(MemoryStore(), make, consumer, every)
    undisturbed.run(epochs=2, batches=2 * SAMPLES // every * every)
    for left_after in (every + 1, SAMPLES, SAMPLES + 2):
        store = MemoryStore()
        first, second = (Training(store, make, consumer, every) for _ in range(2))
        first.run(epochs=2, batches=left_after)
        second.run(epochs=2, batches=2 * SAMPLES // every * every - left_after // every * every)
        assert first.trace + second.trace == undisturbed.trace, f"left after {left_after} batches"
        assert same(state(second), state(undisturbed))


def state(training: Training) -> dict[str, Tensor]:
    return snapshot(training.model, training.optimizers)


def test_a_save_on_demand_amid_an_accumulation_is_that_of_the_last_step() -> None:
    undisturbed = Training(MemoryStore(), shuffled, directly, 4)
    undisturbed.run(epochs=1, batches=16)
    store = MemoryStore()
    first = Training(store, shuffled, directly, 4)
    first.guard.resume()
    first.loop(first.guard.batches(1), limit=10)
    weights = state(first)
    assert first.guard.save("asked for", wait=True)
    first.guard.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert [info.step for info in hf.open_run(store).checkpoints()] == [2, 2]
    second = Training(store, shuffled, directly, 4)
    assert second.guard.resume() == 2
    assert same(state(second), weights)
    second.loop(second.guard.batches(1), limit=8)
    assert first.trace + second.trace == undisturbed.trace


def test_a_batch_whose_step_was_not_called_comes_again(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    seen = []
    for left_at in (7, None):
        training = Training(store, shuffled, directly, 1)
        with training.guard as guard:
            guard.resume()
            for ids, _ in guard.batches():
                if guard.steps == left_at:
                    break
                seen += ids.tolist()
                guard.step(loss=train_step(training.model, training.optimizers, int(ids)))
    assert sorted(seen) == list(range(SAMPLES))
    assert "without a call to step()" not in caplog.text


def test_batches_that_are_skipped_without_a_step_are_told_and_do_not_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    seen = []
    for limit in (9, None):
        training = Training(store, shuffled, directly, 1)
        with training.guard as guard:
            guard.resume()
            for ids, _ in itertools.islice(guard.batches(), limit):
                seen += ids.tolist()
                if len(seen) not in (4, 5):
                    guard.step(loss=train_step(training.model, training.optimizers, int(ids)))
    assert sorted(seen) == list(range(SAMPLES))
    assert "2 batches were taken from batches() without a call to step()" in caplog.text


def test_one_step_for_several_batches_is_told_and_loses_none(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    seen = []
    for limit in (8, None):
        training = Training(store, shuffled, directly, 1)
        with training.guard as guard:
            guard.resume()
            for ids, _ in itertools.islice(guard.batches(), limit):
                seen += ids.tolist()
                if len(seen) % 4 == 0:
                    guard.step(loss=train_step(training.model, training.optimizers, int(ids)))
    assert sorted(seen[:16]) == sorted(set(seen[:16])) and set(seen) == set(range(SAMPLES))
    assert "Call step() once for every batch" in caplog.text


class Costly(OwnLoader):
    asked = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return super().state_dict()


def test_a_state_that_may_be_costly_is_asked_for_at_saves_only_until_batches_are_accumulated() -> None:
    loader = Costly()
    training = Training(MemoryStore(), lambda: loader, directly, 1)
    training.run(epochs=1)
    assert loader.asked <= SAMPLES // 2 + 1


def test_accumulation_that_begins_late_is_told_where_the_place_was_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    training = Training(MemoryStore(), OwnLoader, directly, 1)
    with training.guard as guard:
        guard.resume()
        batches = guard.batches()
        training.loop(batches, limit=5)
        training.every = 3
        training.loop(batches, limit=2)
    assert "2 batches since the last optimizer step have not reached the weights" in caplog.text
    assert "a resume does not repeat them" in caplog.text


def test_optimizer_steps_without_a_step_call_are_counted_by_a_save_and_told(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    training = Training(store, shuffled, directly, 1)
    seen = []
    with training.guard as guard:
        guard.resume()
        for ids, _ in itertools.islice(guard.batches(), 10):
            seen += ids.tolist()
            train_step(training.model, training.optimizers, int(ids))
        assert guard.save(wait=True)
        assert guard.steps == 10
    assert [info.step for info in hf.open_run(store).checkpoints()] == [10]
    assert "optimizers took 10 steps without a call to step()" in caplog.text
    again = Training(store, shuffled, directly, 1)
    with again.guard as guard:
        assert guard.resume() == 10
        seen += [int(ids) for ids, _ in guard.batches()]
    assert sorted(seen) == list(range(SAMPLES))


def test_a_save_between_the_optimizer_and_step_counts_the_step_once() -> None:
    store = MemoryStore()
    model, optimizers = build()
    with hf.Checkpointer(store, model=model, optimizer=optimizers, save=hf.EverySteps(100)) as guard:
        for step in range(3):
            train_step(model, optimizers, step)
            guard.save(wait=True)
            guard.step()
        assert guard.steps == 3
    assert [info.step for info in hf.open_run(store).checkpoints()][-1] == 3


def test_closing_counts_what_no_step_call_followed() -> None:
    store = MemoryStore()
    model, optimizers = build()
    with hf.Checkpointer(store, model=model, optimizer=optimizers) as guard:
        guard.resume()
        for step in range(4):
            train_step(model, optimizers, step)
    assert [info.step for info in hf.open_run(store).checkpoints()] == [4]


def test_several_optimizer_steps_for_one_call_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizers = build()
    with caplog.at_level(logging.WARNING), hf.Checkpointer(MemoryStore(), model=model, optimizer=optimizers) as guard:
        for step in range(6):
            train_step(model, optimizers, step)
            if step % 3 == 2:
                guard.step()
        assert guard.steps == 2
    assert caplog.text.count("stepped 3 times between two calls to step()") == 1
