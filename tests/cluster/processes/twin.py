"""The same training in this process, with the same kernels: what a job of one worker has to come to, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import holdfast as hf
from holdfast.checkpoint.shards import Loaded, ShardedRun
from holdfast.checkpoint.training.rng import capture_rng, restore_rng
from holdfast.cluster.placement import Placement
from holdfast.cluster.saved import load_dense, load_missing
from holdfast.cluster.server.shards import shards_of
from holdfast.cluster.shard import Shard
from holdfast.cluster.train.build import build
from holdfast.cluster.train.exchange import PushedStep
from holdfast.cluster.train.local_exchange import LocalExchange
from holdfast.cluster.train.loop import TrainingLoop
from holdfast.cluster.train.settings import LoopSettings
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
    workers: int = 1
    loader: Callable[[int, int], Any] = programs.loader_of
    take_step: Callable[[TrainingLoop, Any], None] = programs.take_step

    def placement(self) -> Placement:
        return Placement(build(self.model, self.tables).plan, self.servers)

    def shard(self, server: int) -> Shard:
        return Shard(self.placement(), server, self.optimizer, self.dense_optimizer)


class Twin:
    """Servers and workers in this process, in step. Servers lose their rows when a test says so.

    Args:
        recipe: What is trained.
        remembers: Whether ``at`` is asked for what there was after each step.
    """

    def __init__(self, recipe: Recipe | None = None, *, remembers: bool = False) -> None:
        self.recipe = recipe or Recipe()
        built = build(self.recipe.model, self.recipe.tables)
        self.exchange = LocalExchange(
            Placement(built.plan, self.recipe.servers),
            optimizer=self.recipe.optimizer,
            dense_optimizer=self.recipe.dense_optimizer,
            dense=built.dense_values(),
        )
        mean = Mean(self.exchange, self.recipe.workers)
        self._workers = [TwinWorker(self.recipe, index, mean) for index in range(self.recipe.workers)]
        self._steps = 0
        self._seen = [self.values()] if remembers else None  # after each step

    def run_to(self, step: int) -> None:
        """Take steps up to this one."""
        while self._steps < step:
            for worker in self._workers:
                worker.step()
            self._steps += 1
            if self._seen is not None:
                self._seen.append(self.values())

    def values(self) -> Values:
        """Everything that servers hold now, by name."""
        return values_of(self.exchange.shards)

    def at(self, step: int) -> Values:
        """Everything that they held after a step."""
        assert self._seen is not None
        return self._seen[step]

    def lose(self, saved: Shard, *, knows_dense: bool = True) -> None:
        """A server has the newest rows saved from now on. Dense weights come from the worker, if it has pulled any."""
        lost = self.exchange.shards[saved.server]
        for mine, theirs in zip(arrays_of(lost), arrays_of(saved), strict=True):
            mine[...] = theirs
        if knows_dense:
            piece = lost.dense.piece
            lost.dense.values[:] = self._workers[0].loop.dense_values()[piece.start : piece.end]


class TwinWorker:
    """A worker with random numbers of its own."""

    def __init__(self, recipe: Recipe, index: int, exchange: Mean) -> None:
        built = build(recipe.model, recipe.tables)
        lrs = {"lr_tables": recipe.optimizer.lr, "lr_dense": recipe.dense_optimizer.lr}
        self.loop = TrainingLoop(built, exchange.placement, exchange, LoopSettings(**lrs, ahead=0))
        self._recipe = recipe
        self._index = index
        self._steps = self._take_steps()
        self._rng: Any = None

    def step(self) -> None:
        """Take the next one."""
        before = capture_rng()
        programs.seed(self._index) if self._rng is None else restore_rng(self._rng)
        try:
            next(self._steps)
            self._rng = capture_rng()
        finally:
            restore_rng(before)

    def _take_steps(self) -> Iterator[None]:
        loader = self._recipe.loader(self._index, self._recipe.workers)
        for batch in self.loop.batches(loader, epochs=None):
            self._recipe.take_step(self.loop, batch)
            yield


class Mean:
    """Pulls as servers do, and pushes the mean of all workers' gradients, summed in their order."""

    def __init__(self, exchange: LocalExchange, workers: int) -> None:
        self.placement = exchange.placement
        self._exchange = exchange
        self._workers = workers
        self._pushes: list[PushedStep] = []
        self.pull, self.is_there, self.take, self.let_in = (
            exchange.pull,
            exchange.is_there,
            exchange.take,
            exchange.let_in,
        )

    def push(self, step: PushedStep) -> None:
        """Wait for the others."""
        self._pushes.append(step)
        if len(self._pushes) == self._workers:
            pushes, self._pushes = self._pushes, []
            self._exchange.push(pushes[0] if len(pushes) == 1 else _mean_of(pushes))


def _mean_of(pushes: list[PushedStep]) -> PushedStep:
    keys, gradients = [], []
    for group in range(len(pushes[0].keys)):
        sums: dict[int, Any] = {}
        for push in pushes:
            for key, gradient in zip(push.keys[group].tolist(), push.gradients[group], strict=True):
                sums[key] = sums[key] + gradient if key in sums else gradient
        keys.append(np.array(sorted(sums), np.int64))
        width = pushes[0].gradients[group].shape[1]
        rows = [sums[key] for key in sorted(sums)]
        gradients.append((np.array(rows, np.float32) / np.float32(len(pushes))).reshape(-1, width))
    dense = pushes[0].dense.copy()
    for push in pushes[1:]:
        dense += push.dense
    return replace(pushes[0], keys=keys, gradients=gradients, dense=dense / np.float32(len(pushes)))


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


def newest_checkpoint(url: Path, recipe: Recipe, server: int) -> Shard:
    """What a server would have if the job were resumed now, read from the run."""
    shard = recipe.shard(server)
    loaded = ShardedRun(url).load(list(shards_of(shard)))
    assert loaded.state is not None and not loaded.unused
    load_missing(shard, shards_of(shard), loaded)
    load_dense(shard.dense, loaded.state.training)
    return shard


def saved_at_end(url: Path, recipe: Recipe) -> Values:
    """The newest checkpoint, as servers would load it."""
    return values_of([newest_checkpoint(url, recipe, server) for server in range(recipe.servers)])


def assert_same(found: Values, expected: Values) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    different = [name for name, values in expected.items() if found[name].tobytes() != values.tobytes()]
    assert not different, f"different: {different}"
