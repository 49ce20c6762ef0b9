"""Libraries with a loop of their own read ``guard.as_loader()``, call nothing, and are continued exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from holdfast.errors import ConfigurationError, ReaderError, Terminated
from holdfast.storage import MemoryStore
from tests.tiny import build, same, snapshot, train_step

BATCHES, EPOCHS = 10, 3
pytestmark = pytest.mark.filterwarnings("ignore")


class Interrupted(Exception):
    """What happens to a program in the middle of its work."""


class Logged(DataLoader[Any]):
    """A loader with an iteration of its own."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.passes = getattr(self, "passes", 0) + 1
        return super().__iter__()


def data() -> TensorDataset:
    return TensorDataset(torch.arange(4 * BATCHES))


LOADERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: DataLoader(data(), batch_size=4, shuffle=True),
    "stateful": lambda: StatefulDataLoader(data(), batch_size=4, shuffle=True),
    "declared": lambda: hf.Replayed(Logged(data(), batch_size=4, shuffle=True)),
}


class Library:
    """Trains, draws random numbers, decays its rate after every epoch and stops when it is interrupted."""

    def __init__(self, interrupted_at: int | None = None) -> None:
        self.model, self.optimizers = build()
        self.epochs: list[int] = []
        self.batches = 0
        self._left = interrupted_at

    def fit(self, loader: Any, first_epoch: int) -> None:
        assert len(loader) == BATCHES and loader.batch_size == 4
        for epoch in range(first_epoch, EPOCHS):
            count = 0
            for (numbers,) in loader:
                train_step(self.model, self.optimizers, int(numbers.sum() + torch.randint(9, ())))
                count += 1
                self._interrupt()
            assert count > 0  # which few libraries expect
            for optimizer in self.optimizers:
                optimizer.param_groups[0]["lr"] *= 0.5 + 0.1 * float(torch.rand(()))
            self.epochs.append(epoch)

    def _interrupt(self) -> None:
        self.batches += 1
        if self.batches == self._left:
            raise Interrupted


def train(store: MemoryStore, make: Callable[[], Any], library: Library) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    with hf.Checkpointer(
        store,
        model=library.model,
        optimizer=library.optimizers,
        loader=make(),
        save=hf.EverySteps(5),
        overlap=hf.Overlap.WAIT,
    ) as guard:
        guard.resume()
        library.fit(guard.as_loader(), guard.epoch)
    rates = torch.tensor([each.param_groups[0]["lr"] for each in library.optimizers], dtype=torch.float64)
    return snapshot(library.model, library.optimizers) | {"rates": rates}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_an_interrupted_library_ends_where_an_undisturbed_one_does(make: Callable[[], Any]) -> None:
    expected = train(MemoryStore(), make, Library())
    store = MemoryStore()
    for batch in (3, 6, 10, 9, 14):  # of each start
        with pytest.raises(Interrupted):
            train(store, make, Library(batch))
    assert same(train(store, make, Library()), expected)


def test_the_work_after_an_epoch_is_in_no_checkpoint_before_the_next_one_begins() -> None:
    store = MemoryStore()
    with pytest.raises(Interrupted):
        train(store, LOADERS["plain"], Library(BATCHES))  # a save is due, and the epoch is not over
    assert [info.step for info in hf.open_run(store).checkpoints()] == [5]
    resumed = Library()
    train(store, LOADERS["plain"], resumed)
    assert resumed.epochs == [0, 1, 2]


def test_a_finished_library_has_nothing_left_to_do() -> None:
    store = MemoryStore()
    train(store, LOADERS["plain"], Library())
    again = Library()
    train(store, LOADERS["plain"], again)
    assert again.batches == 0
    assert hf.open_run(store).checkpoints()[-1].step == BATCHES * EPOCHS


def test_metrics_come_from_a_function() -> None:
    store, model_and_optimizers = MemoryStore(), build()
    model, optimizers = model_and_optimizers
    with hf.Checkpointer(store, model=model, optimizer=optimizers, loader=LOADERS["plain"]()) as guard:
        for (numbers,) in guard.as_loader(metrics=lambda: {"auc": 0.5 + guard.steps}):
            train_step(model, optimizers, int(numbers.sum()))
    assert hf.open_run(store).checkpoints()[-1].metrics == {"auc": 0.5 + BATCHES - 1}


def test_a_library_that_is_told_to_terminate_ends_when_it_asks_for_a_batch() -> None:
    store = MemoryStore()
    model, optimizers = build()
    with (
        pytest.raises(Terminated),
        hf.Checkpointer(store, model=model, optimizer=optimizers, loader=LOADERS["plain"]()) as guard,
    ):
        for number, (ids,) in enumerate(guard.as_loader(), start=1):
            train_step(model, optimizers, int(ids.sum()))
            if number == 4:
                guard.terminate()
    assert [info.step for info in hf.open_run(store).checkpoints()] == [4]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(3))


def test_a_loader_without_a_length_is_refused() -> None:
    for loader in (None, StatefulDataLoader(Stream())):
        with (
            hf.Checkpointer(MemoryStore(), model=build()[0], loader=loader) as guard,
            pytest.raises(ConfigurationError, match="with a length"),
        ):
            guard.as_loader()


@pytest.mark.parametrize("loader", [[1, 2], DataLoader(Stream())], ids=["list", "stream"])
def test_what_has_no_order_of_indices_cannot_be_replayed(loader: Any) -> None:
    with pytest.raises(ReaderError, match="map-style"):
        hf.Replayed(loader)
