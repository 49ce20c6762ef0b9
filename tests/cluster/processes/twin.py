"""The same training in this process, with the same kernels: what a job of one worker has to come to, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import holdfast as hf
from holdfast.checkpoint.shards import Loaded, ShardedRun
from holdfast.cluster.placement import Placement
from holdfast.cluster.saved import load_dense
from holdfast.cluster.server.saves import shards_of
from holdfast.cluster.shard import Shard
from holdfast.cluster.train.build import build
from holdfast.cluster.train.local_exchange import LocalExchange
from holdfast.cluster.train.loop import LoopSettings, TrainingLoop
from holdfast.policy import Optimizer, Tables
from tests.cluster.processes import programs

Values = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is trained, and how."""

    model: Callable[[], nn.Module] = programs.build_net
    servers: int = 3
    optimizer: Optimizer = hf.Adagrad(0.05)  # noqa: RUF009 - frozen
    dense_optimizer: Optimizer = hf.Adam(0.01)  # noqa: RUF009
    tables: Tables = programs.ON_SERVERS
    loader: Callable[[], Any] = lambda: programs.loader_of(0, 1)
    take_step: Callable[[TrainingLoop, Any], None] = programs.take_step

    def placement(self) -> Placement:
        return Placement(build(self.model, self.tables).plan, self.servers)

    def shard(self, server: int) -> Shard:
        return Shard(self.placement(), server, self.optimizer, self.dense_optimizer)


class Twin:
    """Servers and a worker in this process. Servers lose their rows when a test says so."""

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or Recipe()
        built = build(self.recipe.model, self.recipe.tables)
        self.placement = Placement(built.plan, self.recipe.servers)
        self.exchange = LocalExchange(
            self.placement,
            optimizer=self.recipe.optimizer,
            dense_optimizer=self.recipe.dense_optimizer,
            dense=built.dense_values(),
        )
        settings = LoopSettings(lr_tables=self.recipe.optimizer.lr, lr_dense=self.recipe.dense_optimizer.lr, ahead=0)
        self.loop = TrainingLoop(built, self.placement, self.exchange, settings)
        self._steps = self._take_steps()
        self._seen = [self.values()]  # after each step

    def run_to(self, step: int) -> None:
        """Take steps up to this one."""
        while self.loop.steps < step:
            next(self._steps)
            self._seen.append(self.values())

    def values(self) -> Values:
        """Everything that servers hold now, by name."""
        return values_of(self.exchange.shards)

    def at(self, step: int) -> Values:
        """Everything that they held after a step."""
        return self._seen[step]

    def lose(self, saved: Shard, *, knows_dense: bool = True) -> None:
        """A server has the newest rows saved from now on. Dense weights come from the worker, if it has pulled any."""
        lost = self.exchange.shards[saved.server]
        for mine, theirs in zip(arrays_of(lost), arrays_of(saved), strict=True):
            mine[...] = theirs
        if knows_dense:
            piece = lost.dense.piece
            lost.dense.values[:] = self.loop.dense_values()[piece.start : piece.end]

    def _take_steps(self) -> Iterator[None]:
        for batch in self.loop.batches(self.recipe.loader(), epochs=None):
            self.recipe.take_step(self.loop, batch)
            yield


def arrays_of(shard: Shard) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """All that a server keeps."""
    found = [values for group in shard.groups for values in (group.weights, *group.slots.values())]
    slots = [values for part in shard.dense.piece.parts for values in shard.dense.slots[part.name].values()]
    return [*found, shard.dense.values, *slots]


def values_of(shards: list[Shard]) -> Values:
    """Copies of what servers keep, by place."""
    return {f"server {shard.server}, {i}": a.copy() for shard in shards for i, a in enumerate(arrays_of(shard))}


def newest_saved(url: Path, recipe: Recipe, server: int) -> tuple[Shard, Loaded]:
    """The rows that a server would get if it died now, read from the run."""
    shard = recipe.shard(server)
    loaded = ShardedRun(url).load_newest(list(shards_of(shard)), state=True)
    assert loaded.state is not None
    load_dense(shard.dense, loaded.state.training)
    return shard, loaded


def saved_at_end(url: Path, recipe: Recipe) -> Values:
    """The newest checkpoint, as servers would load it."""
    shards = [recipe.shard(server) for server in range(recipe.servers)]
    for shard in shards:
        loaded = ShardedRun(url).load(list(shards_of(shard)))
        assert loaded.state is not None and not loaded.missing and not loaded.unused
        load_dense(shard.dense, loaded.state.training)
    return values_of(shards)


def assert_same(found: Values, expected: Values) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    different = [name for name, values in expected.items() if found[name].tobytes() != values.tobytes()]
    assert not different, f"different: {different}"
