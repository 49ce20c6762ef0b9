"""What real deaths of servers cost in accuracy, relative to the same deaths in the emulation.

A DLRM trains on the synthetic stream with its tables on servers, which are killed while it trains; each comes back
with the rows of the last checkpoint (CPR-vanilla). The emulation then loses the same rows at the same steps, back to
the same checkpoints. Both are paired by seed with trainings that nothing happened to.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import holdfast as hf
from benchmarks.claims import _deaths_job
from benchmarks.claims._deaths_job import DeathsPlan
from benchmarks.claims._emulation_statistics import Estimate, resampled
from benchmarks.claims._emulation_trainer import DlrmTraining, Model
from benchmarks.data.synthetic import ClickStream
from benchmarks.report import Report, Table
from holdfast.checkpoint.training.tables import Table as HeldTable
from holdfast.checkpoint.training.tables import find_tables
from holdfast.cluster.happenings import Committed, Event
from holdfast.cluster.placement import Group
from holdfast.cluster.train.build import build
from holdfast.emulation.servers import EmulatedServers
from holdfast.kernels import start
from holdfast.policy import Tables, Uniform

SERVERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to train."""

    model: Model
    seeds: int
    deaths: int = 6  # of each training

    @property
    def every(self) -> int:
        """Steps from one checkpoint to the next."""
        return self.model.steps // 3


PLANS = {
    "tiny": Plan(model=Model(scale=0.0002, steps=60, batch_size=16, test_samples=1000), seeds=1, deaths=1),
    "small": Plan(model=Model(scale=0.001, steps=400, batch_size=128, test_samples=20_000), seeds=2),
    "full": Plan(model=Model(scale=0.001, steps=900, batch_size=128, test_samples=40_000), seeds=12),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What one training on a cluster came to."""

    auc: float
    saved: tuple[int, ...]  # the steps of its checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Drops:
    """Of AUC, with one seed."""

    real: float
    emulated: float


def run(scale: str) -> Report:
    plan = PLANS[scale]
    drops = [_measure(plan, seed) for seed in range(plan.seeds)]
    real = resampled(np.array([each.real for each in drops]), _mean)
    emulated = resampled(np.array([each.emulated for each in drops]), _mean)
    return Report(
        title="What deaths of servers cost",
        tables=[_table(drops, real, emulated)],
        figures={
            "real_auc_drop": real.value,
            "real_auc_drop_low": real.low,
            "real_auc_drop_high": real.high,
            "emulated_auc_drop": emulated.value,
            "emulated_auc_drop_low": emulated.low,
            "emulated_auc_drop_high": emulated.high,
            "real_within_emulated": int(emulated.low <= real.value <= emulated.high),
            "largest_difference": max(abs(each.real - each.emulated) for each in drops),
            "seeds": plan.seeds,
            "deaths_per_training": plan.deaths,
        },
    )


def _measure(plan: Plan, seed: int) -> Drops:
    deaths = _deaths(plan, seed)
    with tempfile.TemporaryDirectory(prefix="holdfast-deaths-") as name:
        os.environ[_deaths_job.PLAN] = str(Path(name) / "plan.json")
        undisturbed, disturbed = (_train(plan, seed, each, Path(name)) for each in ((), deaths))
        real = undisturbed.auc - disturbed.auc
        emulated = _emulate(plan, seed, (), ()) - _emulate(plan, seed, disturbed.saved, deaths)
    return Drops(real=real, emulated=emulated)


def _deaths(plan: Plan, seed: int) -> tuple[tuple[int, int], ...]:
    """At any steps after the first checkpoint, each of any server; far enough apart that all are at work again."""
    rng = np.random.default_rng([seed, 7])
    apart = (plan.model.steps - plan.every) // (plan.deaths + 1)
    steps = [plan.every + number * apart + int(rng.integers(apart // 2, apart)) for number in range(plan.deaths)]
    return tuple((step, int(rng.integers(SERVERS))) for step in steps)


# ---- on a cluster ----------------------------------------------------------------------------------------------------


def _train(plan: Plan, seed: int, deaths: tuple[tuple[int, int], ...], folder: Path) -> Trained:
    events: list[Event] = []
    result = folder / "result.json"
    DeathsPlan(result=str(result), model=plan.model, seed=seed, deaths=deaths).write(folder / "plan.json")
    with hf.Cluster(
        folder / f"run-{len(deaths)}",
        model=_deaths_job.build_model,
        train=_deaths_job.train,
        servers=SERVERS,
        workers=1,
        optimizer=hf.SGD(plan.model.table_rate),
        dense_optimizer=hf.SGD(plan.model.rest_rate),
        tables=_declared(plan.model, seed),
        save=hf.EverySteps(plan.every),
        ladder=hf.Ladder(partial=True, priority=None),
        strategy=hf.Full(),
        launcher=hf.LocalProcesses(worker_threads=1),
        ahead=0,
        spares=1,
        view=False,
        on_event=events.append,
    ) as cluster:
        cluster.run()
    auc = json.loads(result.read_text())["auc"]
    return Trained(auc=auc, saved=tuple(each.step for each in events if isinstance(each, Committed)))


def _declared(model: Model, seed: int) -> Tables:
    """Every table on servers, and as the emulation's begin."""
    cardinalities = ClickStream(seed, model.scale).cardinalities
    bounds = {f"emb.{number}.weight": max(rows, 1) ** -0.5 for number, rows in enumerate(cardinalities)}
    return Tables(min_bytes=0, init={name: Uniform(-bound, bound) for name, bound in bounds.items()}, seed=seed)


# ---- emulated --------------------------------------------------------------------------------------------------------


def _emulate(plan: Plan, seed: int, saved: Sequence[int], deaths: Sequence[tuple[int, int]]) -> float:
    torch.set_num_threads(1)
    training = DlrmTraining(plan.model, seed)
    _begin_alike(training.model, plan.model, seed)
    tables = find_tables({"": training.model}, list(training.optimizers), {})
    servers = EmulatedServers(list(tables), SERVERS, range_of=_ranges(tables))
    dies: Mapping[int, int] = dict(deaths)
    for step in range(1, plan.model.steps + 1):
        training.step(step - 1)
        if step in saved:
            servers.save()
        if step in dies:
            servers.fail([dies[step]])
    servers.close()
    return training.auc()


@torch.no_grad()
def _begin_alike(model: nn.Module, plan: Model, seed: int) -> None:
    """As the model on the cluster begins: then both trainings differ by what happens to them alone."""
    declared = _declared(plan, seed)
    built = build(_deaths_job.build_model, declared)
    begins = {name: parameter.detach() for name, parameter in built.module.named_parameters()}
    for name, parameter in model.named_parameters():
        if name.startswith("emb."):
            key = start.table_key(declared.seed, name)
            start.fill(parameter.numpy(), declared.init_of(name).start(), key=key)
        else:
            parameter.copy_(begins[name])


def _ranges(tables: Sequence[HeldTable]) -> Callable[[HeldTable, int], tuple[int, int]]:
    """The rows that each server of a cluster would hold."""
    group = Group(width=1, tables=range(len(tables)), rows=[table.rows for table in tables], servers=SERVERS)
    found = {(tables[each.table].name, server): each for server in range(SERVERS) for each in group.ranges(server)}

    def range_of(table: HeldTable, server: int) -> tuple[int, int]:
        each = found.get((table.name, server))
        return (each.first, each.end) if each is not None else (0, 0)

    return range_of


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(values.mean(axis=-1))


def _table(drops: Sequence[Drops], real: Estimate, emulated: Estimate) -> Table:
    rows: list[tuple[float | int | str, ...]] = [(seed, each.real, each.emulated) for seed, each in enumerate(drops)]
    rows.append(("mean", real.value, emulated.value))
    rows.append(("95%", f"{real.low:.5f} to {real.high:.5f}", f"{emulated.low:.5f} to {emulated.high:.5f}"))
    return Table(caption="Loss of AUC", headers=("seed", "real deaths", "emulated"), rows=rows)
