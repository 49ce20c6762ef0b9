"""Programs of other frameworks, protected in a few lines and interrupted: every sample is trained once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf
from holdfast.storage import MemoryStore
from tests.tiny import build, ids_of, same, snapshot, train_step

pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES = 40
BATCHES = 10


class Interrupted(Exception):
    """What happens to a program in the middle of its work."""


def data() -> TensorDataset:
    return TensorDataset(torch.arange(SAMPLES))


def by_batch_sampler() -> Any:
    return StatefulDataLoader(data(), batch_sampler=BatchSampler(RandomSampler(data()), 4, drop_last=False))


def shuffled() -> Any:
    return StatefulDataLoader(data(), batch_size=4, shuffle=True)


def guarded(store: MemoryStore, model: Any, optimizers: Any, loader: Any) -> hf.Checkpointer:
    return hf.Checkpointer(
        store, model=model, optimizer=optimizers, loader=loader, save=hf.EverySteps(3), overlap=hf.Overlap.WAIT
    )


def plain() -> Any:
    return DataLoader(Noisy(), batch_size=4, shuffle=True)


class Noisy(Dataset[Any]):
    """Draws a random number for every sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor]:
        torch.rand(1)
        return (torch.tensor(index),)


@pytest.mark.parametrize("make", [shuffled, by_batch_sampler, plain])
@pytest.mark.parametrize("options", [{}, {"use_seedable_sampler": True}], ids=["plain", "seedable"])
def test_an_accelerate_program_trains_every_sample_once(make: Callable[[], Any], options: dict[str, Any]) -> None:
    def train(store: MemoryStore, *, seed: int, until: int | None = None) -> tuple[list[int], Any]:
        torch.manual_seed(seed)
        loader = make()
        model, optimizers = build()
        torch.manual_seed(seed)
        config = DataLoaderConfiguration(use_stateful_dataloader=make is not plain, **options)
        loader = Accelerator(cpu=True, dataloader_config=config).prepare(loader)
        seen: list[int] = []
        with guarded(store, model, optimizers, loader) as guard:
            guard.resume()
            for (numbers,) in guard.batches(epochs=2):
                seen += numbers.tolist()
                guard.step(loss=train_step(model, optimizers, int(numbers.sum() + torch.randint(9, ()))))
                if guard.steps == until:
                    break
        return seen, snapshot(model, optimizers)

    expected, weights = train(MemoryStore(), seed=1)
    assert sorted(expected) == sorted([*range(SAMPLES)] * 2)
    store = MemoryStore()
    seen = [train(store, seed=seed, until=until) for seed, until in ((1, 4), (2, BATCHES), (3, BATCHES + 3), (4, None))]
    assert [number for samples, _ in seen for number in samples] == expected
    assert same(seen[-1][1], weights)


class Batches:
    """What Lightning reads: the guard's batches, of which it does not know the number."""

    def __init__(self, guard: hf.Checkpointer) -> None:
        self._guard = guard

    def __iter__(self) -> Iterator[Any]:
        return self._guard.batches(epochs=2)


class Module(LightningModule):
    def __init__(self, every: int) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.optimizer_list = build()
        self.every = every
        self.pending: list[int] = []
        self.trained: list[list[int]] = []

    def configure_optimizers(self) -> Any:
        return self.optimizer_list

    def training_step(self, batch: list[Tensor], number: int) -> None:
        noise = torch.rand(1)
        self.manual_backward((self.model(ids_of(int(batch[0].sum()))) * noise).sum())
        self.pending += batch[0].tolist()
        if (number + 1) % self.every == 0:
            for optimizer in self.optimizer_list:
                optimizer.step()
                optimizer.zero_grad()
            self.trained.append(self.pending)
            self.pending = []


class Guarding(Callback):
    def __init__(self, guard: hf.Checkpointer, until: int | None) -> None:
        self._guard = guard
        self._left = until

    def on_train_batch_end(self, *_: Any) -> None:
        self._guard.step()
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise Interrupted


@pytest.mark.parametrize("every", [1, 2])
def test_a_lightning_program_trains_every_sample_once(every: int) -> None:
    def train(store: MemoryStore, *, until: int | None = None) -> tuple[list[list[int]], int, Any]:
        torch.manual_seed(1)
        module = Module(every)
        guard = guarded(store, module.model, module.optimizer_list, shuffled())
        begun_at = guard.resume()
        trainer = Trainer(
            max_epochs=1,
            accelerator="cpu",
            callbacks=[Guarding(guard, until)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir="/nonexistent",
        )
        try:
            trainer.fit(module, Batches(guard))  # which takes one batch ahead: there is no length
        except Interrupted:
            guard.__exit__(Interrupted, Interrupted(), None)
        else:
            guard.close()
        return module.trained, begun_at, snapshot(module.model, module.optimizer_list)

    expected, _, weights = train(MemoryStore())
    assert len(expected) == 2 * BATCHES // every
    store = MemoryStore()
    trained: list[list[int]] = []
    for until in (7, BATCHES, None):
        more, begun_at, final = train(store, until=until)
        trained = trained[:begun_at] + more
    assert trained == expected
    assert same(final, weights)
