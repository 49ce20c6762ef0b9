"""Few bits of few rows: what checkpoints take beside full ones in single precision (Check-N-Run, figure 11).

One training is protected by a checkpointer per setting, so that all of them save the same states. An interval is as
long as it takes to modify about a quarter of the model. Every object counts: row ids, scales, heads, manifests,
catalogs, intents, leases, and the dense part, which stays exact. Bandwidth is the mean of all bytes written per
interval, over whole cycles from a baseline to the next one; capacity is the most that is held between two saves, with
KeepLast(1).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from torch.optim import Optimizer

import holdfast as hf
from benchmarks.claims._metered_store import KINDS, MeteredStore
from benchmarks.claims._modified import shares_within
from benchmarks.claims._torch_prepack import threads
from benchmarks.data.synthetic import ClickStream
from benchmarks.models import DLRM
from benchmarks.report import Figure, Report, Table
from benchmarks.training import OptimizerName, build_dlrm, train_step
from holdfast.policy import Precision
from holdfast.types import Kind

SEED = 8
DIM = 64
WIDTHS = (32,)  # of both MLPs: the tables are more than 99.5% of the model
FULL = "full"
STRATEGY = hf.Intermittent(least_gain=0.03)  # the paper's own rule writes as much and holds a tenth more
SETTINGS: Mapping[str, Precision] = {  # by the restores that they bear
    FULL: hf.Exact(),
    "1": hf.Bits(2),
    "3": hf.Bits(3),
    "20": hf.Bits(4),
    "20plus": hf.Bits(8, method="published"),
    "20plus_difference": hf.Bits(2, difference=True),
    "60_difference": hf.Bits(3, difference=True),
}
BARS = {  # with SGD, as the DLRM reference is trained
    "bandwidth_reduction_1": 17.0,
    "capacity_reduction_1": 8.0,
    "bandwidth_reduction_20plus": 6.0,
    "capacity_reduction_20plus": 2.5,
    "bandwidth_reduction_20plus_difference": 12.0,
    "capacity_reduction_20plus_difference": 3.0,
}
OPTIMIZERS: Mapping[OptimizerName, str] = {"sgd": "", "adagrad": "_adagrad"}  # with the suffix of their figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to train; ``scale`` multiplies Criteo Kaggle's cardinalities, and the interval goes with it."""

    scale: float
    batch_size: int
    batches_per_interval: int
    intervals: Mapping[OptimizerName, int]  # enough for a second baseline

    @property
    def interval_samples(self) -> int:
        """Samples in an interval."""
        return self.batch_size * self.batches_per_interval


PLANS = {
    "tiny": Plan(scale=0.0005, batch_size=512, batches_per_interval=4, intervals={"sgd": 6, "adagrad": 6}),
    "small": Plan(scale=0.005, batch_size=4096, batches_per_interval=7, intervals={"sgd": 10, "adagrad": 10}),
    "full": Plan(scale=0.02, batch_size=4096, batches_per_interval=33, intervals={"sgd": 24, "adagrad": 16}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What a setting did at the end of an interval, in bytes."""

    kind: Kind
    written: int
    held: int  # once the agent is at rest
    most_held: int  # until then, from the beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a setting takes per interval, in bytes."""

    written: float
    held: int
    mean_held: float
    most_held: int
    cycle: int  # intervals from a baseline to the next one; 0: there was no second one
    kinds: Mapping[str, int]  # bytes written, by kind of object


Costs: TypeAlias = dict[str, Cost]


def run(scale: str) -> Report:
    with threads(1):  # two only wait for each other where something else runs; bytes do not depend on them
        return _measure(PLANS[scale])


def _measure(plan: Plan) -> Report:
    tables: list[Table] = []
    figures: dict[str, Figure] = {}
    for optimizer, suffix in OPTIMIZERS.items():
        costs, dense_share = _train(plan, optimizer)
        figures |= {f"{name}{suffix}": value for name, value in _figures(costs).items()}
        figures[f"dense_share{suffix}"] = dense_share
        tables += [_table(optimizer, costs), _kinds_table(optimizer, costs)]
    shares = shares_within(ClickStream(SEED, plan.scale), plan.interval_samples, 4 * plan.interval_samples)
    figures["modified_per_interval"] = statistics.fmean(shares)
    return Report(title="What few bits of few rows take", tables=[*tables, _bars(figures)], figures=figures)


def _train(plan: Plan, optimizer: OptimizerName) -> tuple[Costs, float]:
    """Train; at the end of every interval each setting saves the same state."""
    stream = ClickStream(SEED, plan.scale)
    model, optimizers = build_dlrm(stream.cardinalities, DIM, optimizer=optimizer, bottom=WIDTHS, top=WIDTHS, seed=SEED)
    stores = {name: MeteredStore(name) for name in SETTINGS}
    history: dict[str, list[Interval]] = {name: [] for name in SETTINGS}
    with ExitStack() as stack:
        guards = {name: stack.enter_context(_guard(store, name, model, optimizers)) for name, store in stores.items()}
        for number in range(plan.intervals[optimizer]):
            for index in range(plan.batches_per_interval):
                batch = stream.batch(number * plan.batches_per_interval + index, plan.batch_size)
                train_step(model, batch, optimizers)
                for guard in guards.values():
                    guard.step()
            for name, guard in guards.items():
                history[name].append(_save(guard, stores[name]))
    return {name: _cost(history[name], stores[name]) for name in SETTINGS}, _dense_share(model)


def _guard(store: MeteredStore, name: str, model: DLRM, optimizers: Sequence[Optimizer]) -> hf.Checkpointer:
    return hf.Checkpointer(
        store,
        model=model,
        optimizer=optimizers,
        save=hf.Never(),
        strategy=hf.Full() if name == FULL else STRATEGY,
        precision=SETTINGS[name],
        retention=hf.KeepLast(1),
        settings=hf.Settings(grace_s=0.0, handle_sigterm=False),
    )


def _save(guard: hf.Checkpointer, store: MeteredStore) -> Interval:
    before = store.written_bytes
    guard.save(wait=True)
    store.come_to_rest()
    return Interval(
        kind=hf.open_run(store).checkpoints()[-1].kind,
        written=store.written_bytes - before,
        held=store.held_bytes,
        most_held=store.most_held_bytes,
    )


def _cost(history: Sequence[Interval], store: MeteredStore) -> Cost:
    baselines = [number for number, each in enumerate(history) if each.kind is Kind.FULL]
    whole = history[: baselines[-1]] or history
    return Cost(
        written=statistics.fmean(each.written for each in whole),
        held=max(each.held for each in history),
        mean_held=statistics.fmean(each.held for each in whole),
        most_held=history[-1].most_held,
        cycle=baselines[1] if len(baselines) > 1 else 0,
        kinds=dict(store.written),
    )


def _dense_share(model: DLRM) -> float:
    tables = sum(each.numel() for each in model.emb.parameters())
    return 1 - tables / sum(each.numel() for each in model.parameters())


def _figures(costs: Costs) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    full = costs[FULL]
    for name, cost in costs.items():
        if name == FULL:
            continue
        figures[f"bandwidth_reduction_{name}"] = full.written / cost.written
        figures[f"capacity_reduction_{name}"] = full.held / cost.held
        figures[f"mean_capacity_reduction_{name}"] = full.mean_held / cost.mean_held
        figures[f"transient_capacity_reduction_{name}"] = full.held / cost.most_held
        figures[f"intervals_per_baseline_{name}"] = cost.cycle
        figures[f"metadata_share_{name}"] = 1 - cost.kinds["bundles"] / sum(cost.kinds.values())
    return figures


def _table(optimizer: str, costs: Costs) -> Table:
    full = costs[FULL]
    rows: list[Sequence[Figure]] = [
        (
            name,
            f"{full.written / cost.written:.1f}",
            f"{full.held / cost.held:.2f}",
            f"{full.mean_held / cost.mean_held:.2f}",
            f"{full.held / cost.most_held:.2f}",
            cost.cycle or "none",
        )
        for name, cost in costs.items()
    ]
    headers = ("restores", "bandwidth ÷", "capacity ÷", "mean capacity ÷", "while deleting ÷", "intervals per baseline")
    return Table(caption=f"Reduction beside full checkpoints, {optimizer} (figure 11)", headers=headers, rows=rows)


def _bars(figures: Mapping[str, Figure]) -> Table:
    rows: list[Sequence[Figure]] = [(name, bar, float(figures[name])) for name, bar in BARS.items()]
    return Table(caption="Bars", headers=("figure", "at least", "measured"), rows=rows)


def _kinds_table(optimizer: str, costs: Costs) -> Table:
    rows: list[Sequence[Figure]] = [
        (name, *(f"{cost.kinds.get(kind, 0):,}" for kind in KINDS)) for name, cost in costs.items()
    ]
    return Table(caption=f"Bytes written, by kind of object, {optimizer}", headers=("restores", *KINDS), rows=rows)
