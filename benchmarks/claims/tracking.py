"""What it costs to know which rows changed: time per step, and memory.

Steps with and without tracking come in pairs, in alternating order, on one and the same model, so that neither drift
nor the place of its memory tells them apart. Beside it stands what a stopwatch around the tracker's hooks says: it
misses what tracking does to the caches, but has no noise.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.data.schema import Batch
from benchmarks.data.synthetic import ClickStream
from benchmarks.report import Figure, Report, Table
from benchmarks.training import Learner, build_dlrm, train_step
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.tables import Table as EmbeddingTable
from holdfast.checkpoint.training.tables import find_tables
from holdfast.types import Kind, Since

DIM = 64
BOTTOM, TOP = (512, 256), (512, 512, 256)  # CPR's widths for Criteo Terabyte, whose vectors have 64 numbers too
SEED = 5
BATCHES = 32
WARM_STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure; ``scale`` multiplies Criteo Kaggle's cardinalities."""

    batch_size: int
    scale: float
    pairs: int
    dense_scale: float  # dense gradients are as large as the tables: small ones, or a step takes seconds
    dense_pairs: int


PLANS = {
    "tiny": Plan(batch_size=64, scale=0.0005, pairs=4, dense_scale=0.0005, dense_pairs=2),
    "small": Plan(batch_size=2048, scale=0.0625, pairs=200, dense_scale=0.004, dense_pairs=20),
    "full": Plan(batch_size=2048, scale=0.125, pairs=1000, dense_scale=0.02, dense_pairs=200),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of a step with tracking and of one without."""

    tracked_s: float
    plain_s: float


@dataclass(slots=True)
class Stopwatch:
    """Sums the time between the hooks registered before it started and those registered after."""

    total_s: float = 0.0
    _since_s: float = field(default=0.0, init=False)

    def start(self, *_: Any) -> None:
        self._since_s = time.perf_counter()

    def stop(self, *_: Any) -> None:
        self.total_s += time.perf_counter() - self._since_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """The pairs of one kind of gradient, and the mean time a step spent in the tracker's hooks."""

    pairs: Sequence[Pair]
    hooks_s: float

    @property
    def step_s(self) -> float:
        """The median step without tracking."""
        return statistics.median(pair.plain_s for pair in self.pairs)

    @property
    def overhead_s(self) -> float:
        """The median of what tracking adds to a step."""
        return statistics.median(pair.tracked_s - pair.plain_s for pair in self.pairs)

    @property
    def error_s(self) -> float:
        """The standard error of that median, from the spread of the pairs' middle half (normal noise assumed)."""
        differences = [pair.tracked_s - pair.plain_s for pair in self.pairs]
        low, _, high = statistics.quantiles(differences, n=4)
        return 1.2533 * (high - low) / 1.349 / math.sqrt(len(differences))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the tracker keeps: sets of one bit per row, beside the tables' weights."""

    sets: int
    bytes_per_set: int
    model_bytes: int


def run(scale: str) -> Report:
    plan = PLANS[scale]
    sparse, memory = _measure(plan.scale, plan.pairs, plan.batch_size, sparse=True)
    dense, _ = _measure(plan.dense_scale, plan.dense_pairs, plan.batch_size, sparse=False)
    return Report(
        title="What tracking costs",
        tables=[_times({"sparse": sparse, "dense": dense}), _sizes(memory)],
        figures=_figures(sparse, dense, memory) | _place_figures(sparse, plan.pairs),
    )


def _measure(scale: float, count: int, batch_size: int, *, sparse: bool) -> tuple[Timings, Memory]:
    stream = ClickStream(SEED, scale)
    batches = [stream.batch(index, batch_size) for index in range(BATCHES)]
    learner = build_dlrm(stream.cardinalities, DIM, sparse=sparse, bottom=BOTTOM, top=TOP, seed=SEED)
    with _tracked(learner) as (tracker, stopwatch):
        _warm_up(learner, tracker, batches)
        stopwatch.total_s = 0.0
        pairs = [_pair(learner, tracker, batches, number) for number in range(count)]
        timings = Timings(pairs=pairs, hooks_s=stopwatch.total_s / count)
        tables = find_tables({"": learner.model}, learner.optimizers)
        if whole := [table.name for table in tables if tracker.touched(table, Since.LAST).whole]:
            raise RuntimeError(f"not measured: the tracker took tables as changed throughout: {', '.join(whole)}")
        return timings, _memory(learner, tracker, tables, batches[0])


@contextlib.contextmanager
def _tracked(learner: Learner) -> Iterator[tuple[Tracker, Stopwatch]]:
    """A tracker whose hooks stand between two of ours."""
    stopwatch = Stopwatch()
    first = [
        register_optimizer_step_pre_hook(stopwatch.start),
        register_optimizer_step_post_hook(stopwatch.start),
    ]
    tracker = Tracker(find_tables({"": learner.model}, learner.optimizers), learner.optimizers)
    last = [
        register_optimizer_step_pre_hook(stopwatch.stop),
        register_optimizer_step_post_hook(stopwatch.stop),
    ]
    try:
        yield tracker, stopwatch
    finally:
        tracker.close()
        for handle in (*first, *last):
            handle.remove()


def _warm_up(learner: Learner, tracker: Tracker, batches: Sequence[Batch]) -> None:
    """Until the tracker is where it is between two checkpoints: slots exist, and rows are known one by one."""
    for step in range(WARM_STEPS):
        train_step(learner.model, batches[step % BATCHES], learner.optimizers)
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)


def _pair(learner: Learner, tracker: Tracker, batches: Sequence[Batch], number: int) -> Pair:
    """Both steps train on the same batch."""
    batch = batches[number % len(batches)]
    seconds: dict[bool, float] = {}
    for with_tracking in (True, False) if number % 2 else (False, True):
        with contextlib.nullcontext() if with_tracking else tracker.suspended():
            seconds[with_tracking] = _timed_step(learner, batch)
    return Pair(tracked_s=seconds[True], plain_s=seconds[False])


def _timed_step(learner: Learner, batch: Batch) -> float:
    started_s = time.perf_counter()
    train_step(learner.model, batch, learner.optimizers)
    return time.perf_counter() - started_s


def _memory(learner: Learner, tracker: Tracker, tables: Sequence[EmbeddingTable], batch: Batch) -> Memory:
    """The sets at their most: rows since the baseline, rows in a save under way, rows since."""
    tracker.begin(Kind.INCREMENTAL)
    tracker.committed(Kind.INCREMENTAL)
    train_step(learner.model, batch, learner.optimizers)
    tracker.begin(Kind.INCREMENTAL)
    train_step(learner.model, batch, learner.optimizers)
    sets = [tracker.touched(table, Since.BASELINE).sets for table in tables]
    most = max(len(table) for table in sets)
    total = sum(bits.nbytes for table in sets for bits in table)
    weights = sum(table.parameter.nbytes for table in tables)
    return Memory(sets=most, bytes_per_set=total // most, model_bytes=weights)


def _figures(sparse: Timings, dense: Timings, memory: Memory) -> dict[str, Figure]:
    figures: dict[str, Figure] = {
        "tracking_overhead_fraction": sparse.overhead_s / sparse.step_s,
        "tracker_bytes_per_set_over_model_bytes": memory.bytes_per_set / memory.model_bytes,
        "tracker_sets": memory.sets,
        "tracker_model_bytes": memory.model_bytes,
        "tracking_dense_overhead_fraction": dense.overhead_s / dense.step_s,
    }
    for prefix, timings in (("tracking", sparse), ("tracking_dense", dense)):
        figures |= {
            f"{prefix}_overhead_us": 1e6 * timings.overhead_s,
            f"{prefix}_overhead_standard_error_us": 1e6 * timings.error_s,
            f"{prefix}_hooks_us": 1e6 * timings.hooks_s,
            f"{prefix}_step_us": 1e6 * timings.step_s,
            f"{prefix}_pairs": len(timings.pairs),
        }
    return figures


def _place_figures(timings: Timings, steps: int) -> dict[str, Figure]:
    """What it adds to a step to keep the place in the data, for a save that comes amid the batches of the next one."""
    loader = StatefulDataLoader(range(64 * steps), batch_size=64, shuffle=True)
    places = Reader(loader).places
    seconds = []
    for _ in loader:
        places.hand_out()
        started_s = time.perf_counter()
        places.step(completed=True)
        seconds.append(time.perf_counter() - started_s)
    kept_s = statistics.median(seconds)
    return {"place_overhead_fraction": kept_s / timings.step_s, "place_overhead_us": 1e6 * kept_s}


def _times(kinds: dict[str, Timings]) -> Table:
    rows = [
        (
            kind,
            len(timings.pairs),
            f"{1e3 * timings.step_s:.2f}",
            f"{1e6 * timings.overhead_s:.0f} ± {1e6 * timings.error_s:.0f}",
            f"{timings.overhead_s / timings.step_s:.2%}",
            f"{1e6 * timings.hooks_s:.0f}",
        )
        for kind, timings in kinds.items()
    ]
    headers = ("gradients", "pairs", "step, ms", "tracking adds, µs", "share", "in hooks, µs")
    return Table(caption=f"Time of a step ({torch.get_num_threads()} threads)", headers=headers, rows=rows)


def _sizes(memory: Memory) -> Table:
    share = f"{memory.bytes_per_set / memory.model_bytes:.4%}"
    row = (memory.sets, memory.bytes_per_set, memory.model_bytes, share)
    return Table(caption="Memory", headers=("sets", "bytes per set", "bytes of weights", "share"), rows=[row])
