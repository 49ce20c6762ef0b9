"""A small DLRM and a worker with servers in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from benchmarks.data.schema import Batch, scaled_cardinalities
from benchmarks.models.dlrm import DLRM
from holdfast.cluster.placement import Placement
from holdfast.cluster.train.build import BuiltModel, build
from holdfast.cluster.train.local_exchange import LocalExchange
from holdfast.cluster.train.loop import TrainingLoop
from holdfast.cluster.train.settings import LoopSettings
from holdfast.policy import SGD, Optimizer, Tables, Uniform, tables

CARDINALITIES = scaled_cardinalities(2e-5)
ON_SERVERS = tables(min_bytes=1024, init=Uniform(-0.3, 0.3))


def build_dlrm() -> nn.Module:
    return DLRM(CARDINALITIES, 8, bottom=(16,), top=(16,), on_servers=True)


class Samples(torch.utils.data.Dataset[Batch]):
    """Samples by number."""

    def __init__(self, count: int, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.dense = torch.from_numpy(draw.standard_normal((count, 13), np.float32))
        ids = np.stack([draw.zipf(1.3, count) % rows for rows in CARDINALITIES], axis=1)
        self.ids = torch.from_numpy(ids.astype(np.int64))
        self.labels = torch.from_numpy(draw.integers(0, 2, count).astype(np.float32))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Batch:
        return Batch(self.dense[number], self.ids[number], self.labels[number])


def loader_of(samples: int = 96, batch_size: int = 16, *, shuffle: bool = False, seed: int = 0) -> DataLoader[Batch]:
    return DataLoader(Samples(samples, seed), batch_size=batch_size, shuffle=shuffle)


class Worker:
    """A training loop, and the servers that it trains on."""

    def __init__(
        self,
        model: Callable[[], nn.Module] = build_dlrm,
        *,
        servers: int = 2,
        optimizer: Optimizer | None = None,
        dense_optimizer: Optimizer | None = None,
        declared: Tables = ON_SERVERS,
        exchange: LocalExchange | None = None,
        place: bytes | None = None,
        **settings: Any,
    ) -> None:
        optimizer, dense_optimizer = optimizer or SGD(0.1), dense_optimizer or SGD(0.1)
        self.built: BuiltModel = build(model, declared)
        placement = Placement(self.built.plan, servers)
        self.exchange = exchange or LocalExchange(
            placement, optimizer=optimizer, dense_optimizer=dense_optimizer, dense=self.built.dense_values()
        )
        chosen = LoopSettings(lr_tables=optimizer.lr, lr_dense=dense_optimizer.lr, **settings)
        self.loop = TrainingLoop(self.built, placement, self.exchange, chosen, place=place)

    def train(self, loader: Any, **how: Any) -> list[float]:
        """An ordinary loop."""
        return list(self.steps(loader, **how))

    def steps(self, loader: Any, **how: Any) -> Iterator[float]:
        """The same, step by step."""
        for batch in self.loop.batches(loader, **how):
            loss = loss_of(self.loop.model, batch)
            loss.backward()
            self.loop.step(loss=loss)
            yield loss.item()

    def state(self) -> dict[str, np.ndarray]:
        """All of the model, as servers have it."""
        names = [table.name for table in self.built.plan.tables]
        return {"": self.exchange.dense(), **{name: self.exchange.table(name) for name in names}}

    def bytes(self) -> dict[str, bytes]:
        return {name: values.tobytes() for name, values in self.state().items()}


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(model(batch.dense, batch.ids), batch.labels)


def plain_copy(worker: Worker, model: nn.Module) -> nn.Module:
    """A model of torch's own that holds what the servers hold."""
    state = worker.state()
    parameters = dict(model.named_parameters())
    at = 0
    with torch.no_grad():
        for spec in worker.built.plan.dense:
            parameters[spec.name].copy_(torch.from_numpy(state[""][at : at + spec.size]).view(spec.shape))
            at += spec.size
        for table in worker.built.plan.tables:
            parameters[table.name].copy_(torch.from_numpy(state[table.name]))
    return model


def distances(worker: Worker, model: nn.Module) -> Iterator[float]:
    """How far each parameter of torch's is from what the servers hold."""
    other = plain_copy(worker, worker_like(model))
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        yield float((mine - theirs).detach().abs().max()) if mine.numel() else 0.0


def worker_like(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model)
