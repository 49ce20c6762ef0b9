"""A DLRM that trains on a device, timed in stretches of steps with and without a save in them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import holdfast as hf
from benchmarks.data.schema import DENSE_FIELDS, Batch
from benchmarks.models import DLRM

DIM = 64
BATCHES = 8
STEPS_AHEAD = 2  # that the CPU queues before it waits for the device, as a loop does that reads its loss now and then
LR = 0.01
SAVE_AT = 4  # steps into a stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    tables: int
    rows: int  # of each
    batch_size: int
    layers: tuple[int, ...]
    least_step_s: float  # batches grow until a step takes as long
    pairs: int
    steps: int  # of each stretch
    dcp_pairs: int

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return 4 * DIM

    @property
    def table_bytes(self) -> int:
        """Of all tables."""
        return self.tables * self.rows * self.row_bytes


def synchronize(device: torch.device) -> None:
    """Until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Loop:
    """Trains, a few steps ahead of the device."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self._plan = plan
        with torch.device(device):
            self.model = DLRM([plan.rows] * plan.tables, DIM, bottom=plan.layers, top=plan.layers)
        self.optimizers: list[Optimizer] = [
            SGD(self.model.emb.parameters(), lr=LR),
            SGD([*self.model.bottom.parameters(), *self.model.top.parameters()], lr=LR),
        ]
        self.batch_size = plan.batch_size
        self._batches = self._draw()
        self._queued: deque[torch.cuda.Event] = deque()
        self.step_s = self._grow()

    def of(self, plan: Plan) -> Loop:
        """The same loop, with stretches of another plan."""
        other = copy(self)
        other._plan = plan
        return other

    @property
    def tables(self) -> dict[str, Tensor]:
        """The weights, by their names."""
        return {f"emb.{number}": _weight(table) for number, table in enumerate(self.model.emb)}

    def step(self, before_update: Callable[[], None] = lambda: None) -> None:
        """Queue one step."""
        batch = next(self._batches)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        F.binary_cross_entropy_with_logits(self.model(batch.dense, batch.ids), batch.labels).backward()
        before_update()
        for optimizer in self.optimizers:
            optimizer.step()
        self._keep_pace()

    def stretch(
        self, after_step: Callable[[], None], at: int | None = None, save: Callable[[], None] | None = None
    ) -> float:
        """Seconds for all steps of a stretch, with a save after step ``at``; from idle to idle."""
        synchronize(self.device)
        started_s = time.perf_counter()
        for number in range(self._plan.steps):
            self.step()
            after_step()
            if number == at and save is not None:
                save()
        synchronize(self.device)
        return time.perf_counter() - started_s

    def busy_share(self, steps: int = 10) -> float:
        """What part of the time the device computes, by torch's profiler."""
        from torch.profiler import ProfilerActivity, profile

        synchronize(self.device)
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            started_s = time.perf_counter()
            for _ in range(steps):
                self.step()
            synchronize(self.device)
            wall_s = time.perf_counter() - started_s
        busy_us = sum(event.self_device_time_total for event in profiled.key_averages())
        return float(busy_us) / 1e6 / wall_s

    def _grow(self) -> float:
        """Larger batches until steps are long enough; how long they are."""
        while True:
            for _ in range(3):
                self.step()
            steps = 10
            synchronize(self.device)
            started_s = time.perf_counter()
            for _ in range(steps):
                self.step()
            synchronize(self.device)
            step_s = (time.perf_counter() - started_s) / steps
            if step_s >= self._plan.least_step_s:
                return step_s
            self.batch_size *= 2
            self._batches = self._draw()

    def _draw(self) -> itertools.cycle[Batch]:
        return itertools.cycle([_batch(self._plan, self.batch_size, self.device) for _ in range(BATCHES)])

    def _keep_pace(self) -> None:
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event()
        event.record()
        self._queued.append(event)
        if len(self._queued) > STEPS_AHEAD:
            self._queued.popleft().synchronize()


class GuardedLoop:
    """A loop with a Checkpointer, which saves in every other stretch."""

    def __init__(self, guard: hf.Checkpointer, loop: Loop, plan: Plan, *, touch: float | None) -> None:
        """``touch``: the share of rows that is marked before each save; None: none are."""
        self._guard = guard
        self._loop = loop
        self._at = min(SAVE_AT, plan.steps - 1)
        self._touched = {
            name: torch.randperm(len(each), device=loop.device)[: int(len(each) * touch)]
            for name, each in loop.tables.items()
            if touch is not None
        }
        self.call_s: list[float] = []
        self.drain_s: list[float] = []
        self.commit_s: list[float] = []

    def without(self) -> float:
        """Seconds of a stretch without a save."""
        return self._loop.stretch(self._guard.step)

    def with_save(self) -> float:
        """Seconds of a stretch with one, which is committed before another begins."""
        for name, ids in self._touched.items():
            self._guard.mark(name, ids)
        started_s = time.perf_counter()
        taken_s = self._loop.stretch(self._guard.step, at=self._at, save=self._save)
        self._guard.drain()
        self.commit_s.append(time.perf_counter() - started_s)
        self.drain_s.append(self._guard.stats.last_drain_s)
        return taken_s

    def _save(self) -> None:
        started_s = time.perf_counter()
        self._guard.save()
        self.call_s.append(time.perf_counter() - started_s)


def link_copy_s(source: Sequence[Tensor], times: int = 5) -> float:
    """Seconds to copy these tensors, which lie packed on their device, to pinned memory: the best of several."""
    host = torch.empty(max(each.numel() for each in source), dtype=source[0].dtype, pin_memory=source[0].is_cuda)
    best_s = float("inf")
    for _ in range(times):
        synchronize(source[0].device)
        started_s = time.perf_counter()
        for each in source:
            host[: each.numel()].copy_(each.view(-1), non_blocking=True)
        synchronize(source[0].device)
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s


def _batch(plan: Plan, size: int, device: torch.device) -> Batch:
    return Batch(
        dense=torch.randn(size, DENSE_FIELDS, device=device),
        ids=torch.randint(0, plan.rows, (size, plan.tables), device=device),
        labels=torch.randint(0, 2, (size,), device=device).float(),
    )


def _weight(table: nn.Module) -> Tensor:
    assert isinstance(table, nn.EmbeddingBag)
    return table.weight.detach()
