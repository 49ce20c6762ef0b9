"""A small Lightning program with everything that could go wrong after a restart; run as a process, or in one."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast as hf

SAMPLES, BATCH = 60, 4  # 15 batches an epoch
ROWS = (50, 20)


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.stack([torch.randint(0, rows, (SAMPLES,), generator=generator) for rows in ROWS], dim=1)
    return ids, torch.rand(SAMPLES, generator=generator)


class Stream(IterableDataset[Any]):
    """Samples without a length, in an order and with noise drawn while they are read."""

    def __init__(self) -> None:
        self._ids, self._clicks = samples()
        self._next = 0
        self._order: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        if self._next == len(self._order):
            self._order, self._next = torch.randperm(SAMPLES).tolist(), 0
        while self._next < len(self._order):
            number = self._order[self._next]
            self._next += 1
            yield self._ids[number], self._clicks[number] + 0.01 * torch.rand(())

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next, "order": self._order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next, self._order = state["next"], state["order"]


LOADERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: DataLoader(TensorDataset(*samples()), batch_size=BATCH, shuffle=True),
    "stateful": lambda: StatefulDataLoader(TensorDataset(*samples()), batch_size=BATCH, shuffle=True),
    "workers": lambda: StatefulDataLoader(TensorDataset(*samples()), batch_size=BATCH, shuffle=True, num_workers=1),
    "stream": lambda: StatefulDataLoader(Stream(), batch_size=BATCH),
}


class Module(pl.LightningModule):
    """Two tables; dropout; a scheduler by steps and one that watches the validation; counts what it trained."""

    def __init__(self, *, manual: bool = False, sparse: bool = False, every: int = 1, drawn: int = 3) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.users = nn.Embedding(ROWS[0], 4, sparse=sparse)
        self.items = nn.Embedding(ROWS[1], 4, sparse=sparse)
        self.top = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))
        self.automatic_optimization = not manual
        self._sparse, self._every, self._drawn = sparse, every, drawn

    def loss(self, batch: Any) -> Tensor:
        ids, clicks = batch
        found = torch.cat([self.users(ids[:, 0]), self.items(ids[:, 1])], dim=1)
        return (self.top(found).squeeze(1) - clicks).square().mean()

    def training_step(self, batch: Any, number: int) -> Tensor | None:
        loss = self.loss(batch)
        self.log("loss", loss)
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        if (number + 1) % self._every == 0:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
        return None

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            self.top[1].bias.mul_(0.999)  # after all callbacks

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("val", self.loss(batch) + 0.1 * torch.rand(()), sync_dist=True)

    def on_train_epoch_start(self) -> None:
        with torch.no_grad():
            self.top[1].bias.add_(0.01 * torch.rand(self._drawn).sum())

    def on_train_epoch_end(self) -> None:
        with torch.no_grad():
            self.top[1].bias.add_(0.01 * torch.rand(()))

    def on_train_start(self) -> None:
        torch.rand(self._drawn)  # which a resume must undo

    def configure_optimizers(self) -> Any:
        tables = [self.users.weight, self.items.weight]
        if not self.automatic_optimization:
            embed = torch.optim.SparseAdam(tables) if self._sparse else torch.optim.Adagrad(tables, lr=0.1)
            return [embed, torch.optim.Adam(self.top.parameters(), lr=0.01)]
        optimizer = torch.optim.Adagrad(self.parameters(), lr=0.1)
        step = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return [optimizer], [
            {"scheduler": step, "interval": "step"},
            {"scheduler": plateau, "interval": "epoch", "monitor": "val"},
        ]


class Told(pl.Callback):
    """Calls back after every batch."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._tell(trainer.fit_loop.epoch_loop.batch_progress.total.ready)


@dataclass(kw_only=True)
class Setup:
    """One program."""

    loader: str = "plain"
    module: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    guard: dict[str, Any] = field(default_factory=dict)
    validates: bool = True

    def fit(self, url: Any, *callbacks: pl.Callback) -> tuple[pl.Trainer, Module, Any]:
        """The program from its start to its end."""
        quiet()
        module = Module(**self.module)
        options = {"save": hf.EverySteps(4), "overlap": hf.Overlap.WAIT, **self.guard}
        guards = [hf.lightning.Guard(url, **options)] if url is not None else []
        trainer = pl.Trainer(
            **{
                "max_epochs": 3,
                "accelerator": "cpu",
                "devices": 1,
                "logger": False,
                "enable_checkpointing": bool(guards),
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "callbacks": [*guards, *callbacks],
                **self.trainer,
            }
        )
        pl.seed_everything(11)
        held_out = DataLoader(TensorDataset(*samples()), batch_size=20) if self.validates else None
        trainer.fit(module, LOADERS[self.loader](), held_out)
        return trainer, module, guards[0] if guards else None


def everything(trainer: pl.Trainer, module: Module) -> dict[str, Tensor]:
    """Every bit that training has made."""
    state = {name: value.clone() for name, value in module.state_dict().items()}
    for number, optimizer in enumerate(trainer.optimizers):
        for index, values in enumerate(optimizer.state.values()):
            state |= {f"{number}/{index}/{key}": torch.as_tensor(value).clone() for key, value in values.items()}
        for index, group in enumerate(optimizer.param_groups):
            state[f"{number}/lr/{index}"] = torch.tensor(group["lr"], dtype=torch.float64)
    state["global_step"] = torch.tensor(trainer.global_step)
    state["epoch"] = torch.tensor(trainer.current_epoch)
    state["logged"] = torch.tensor(trainer.fit_loop.epoch_loop._batches_that_stepped)
    state["rng"] = torch.get_rng_state()
    return state


def quiet() -> None:
    """Lightning's advice is not about these tests."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")


def digest(state: dict[str, Tensor]) -> str:
    """Of every bit."""
    hashed = hashlib.sha256()
    for name, value in sorted(state.items()):
        hashed.update(name.encode() + value.contiguous().numpy().tobytes())
    return hashed.hexdigest()
