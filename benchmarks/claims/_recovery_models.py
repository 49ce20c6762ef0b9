"""Recovery of real models: what a DLRM, a DeepFM and a PNN change while they train (IncrCP, figure 15).

One training is protected by a checkpointer per strategy, so that all of them save the same states. The tables come
with their optimizer's slots. Recoveries are made in one process, by turns, and compared with copies of the tables.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer

import holdfast as hf
from benchmarks.claims._recovery_child import Amount, amount_of, recover_above
from benchmarks.claims._recovery_figures import Findings
from benchmarks.data.synthetic import ClickStream
from benchmarks.files import object_sizes
from benchmarks.models import DLRM, PNN, DeepFM
from benchmarks.report import Figure, Table
from benchmarks.training import train_step
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.restore.tensors import Targets, restore_rows
from holdfast.checkpoint.training.tables import WEIGHT, find_tables
from holdfast.policy import Strategy

MODELS: Mapping[str, Callable[[Sequence[int]], nn.Module]] = {"dlrm": DLRM, "deepfm": DeepFM, "pnn": PNN}
STRATEGIES: Mapping[str, Strategy] = {
    "naive": hf.Consecutive(),
    "differential_once": hf.OneShot(),
    "grid": hf.Grid(reset=False),
}
SEED = 9
Tables = dict[str, Targets]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """How much to train; ``scale`` multiplies Criteo Kaggle's cardinalities."""

    scale: float
    batch_size: int
    batches_per_interval: int
    intervals: int
    every: int  # of the checkpoints one in so many is recovered
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """All recoveries with one strategy, added up."""

    seconds: float
    rows_read: int
    wrong_rows: int
    kept_bytes: int


def measure(name: str, plan: ModelPlan) -> Findings:
    """The recoveries of one of the MODELS."""
    with tempfile.TemporaryDirectory(prefix="holdfast-recovery-") as folder:
        folders = {strategy: Path(folder) / strategy for strategy in STRATEGIES}
        truth = _train(MODELS[name], plan, folders)
        found = {strategy: _recover_all(folders[strategy], truth, plan.repeats) for strategy in STRATEGIES}
    wanted = found["differential_once"].rows_read
    lines: dict[str, dict[str, Figure]] = {
        strategy: {
            "recovery_s": one.seconds,
            "rows_read_over_wanted": one.rows_read / wanted,
            "kept_bytes": one.kept_bytes,
        }
        for strategy, one in found.items()
    }
    table = Table(
        caption=f"A {name} in training (IncrCP, figure 15)",
        headers=("strategy", "recovery, s", "rows read / wanted", "kept, bytes"),
        rows=[(strategy, *line.values()) for strategy, line in lines.items()],
    )
    figures = {f"{name}_{strategy}_{key}": value for strategy, line in lines.items() for key, value in line.items()}
    return Findings(tables=[table], figures=figures, wrong_rows=sum(one.wrong_rows for one in found.values()))


def _train(
    build: Callable[[Sequence[int]], nn.Module], plan: ModelPlan, folders: Mapping[str, Path]
) -> dict[int, Tables]:
    """Train and save; copies of the tables at the checkpoints that will be recovered. The first is the baseline."""
    stream = ClickStream(SEED, plan.scale)
    model = build(stream.cardinalities)
    optimizers = optimizers_of(model)
    truth: dict[int, Tables] = {}
    with ExitStack() as stack:
        guards = [
            stack.enter_context(guarded(folders[name], STRATEGIES[name], model, optimizers)) for name in STRATEGIES
        ]
        for interval in range(plan.intervals + 1):
            for batch in range(plan.batches_per_interval):
                index = interval * plan.batches_per_interval + batch
                train_step(model, stream.batch(index, plan.batch_size), optimizers)
                for guard in guards:
                    guard.step()
            for guard in guards:
                guard.save(wait=True)
            if interval and interval % plan.every == 0:
                truth[interval] = copy_tables(model, optimizers)
        for guard in guards:
            guard.drain(arranged=True)
    return truth


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """One for the tables, one for the rest."""
    tables = [table.parameter for table in find_tables({"": model})]
    rest = [parameter for parameter in model.parameters() if not any(parameter is table for table in tables)]
    return [Adagrad(tables, lr=0.05), Adagrad(rest, lr=0.02)]


def guarded(folder: Path, strategy: Strategy, model: nn.Module, optimizers: Sequence[Optimizer]) -> hf.Checkpointer:
    """A training under the protection of one strategy; saves are asked for."""
    return hf.Checkpointer(
        folder,
        model=model,
        optimizer=optimizers,
        save=hf.Never(),
        strategy=strategy,
        retention=hf.KeepAll(),
        settings=hf.Settings(grace_s=0.0, handle_sigterm=False),
    )


def copy_tables(model: nn.Module, optimizers: Sequence[Optimizer]) -> Tables:
    """Weights and slots of all tables as they are now."""
    tables = find_tables({"": model}, optimizers)
    columns = {table.name: {WEIGHT: table.parameter.detach(), **table.slots()} for table in tables}
    return each_column(columns, torch.clone)


def each_column(tables: Tables, change: Callable[[Tensor], Tensor]) -> Tables:
    """The same tables with every column changed."""
    return {name: {key: change(column) for key, column in columns.items()} for name, columns in tables.items()}


def _recover_all(folder: Path, truth: Mapping[int, Tables], repeats: int) -> Recovered:
    seconds, rows_read, wrong_rows = 0.0, 0, 0
    for interval, expected in truth.items():
        times = []
        for repeat in range(repeats + 1):
            time_s, amount, tables = _recover(folder, interval, expected)
            times += [time_s] if repeat else []  # the first one reads what the page cache does not hold yet
            wrong_rows += _wrong_rows(tables, expected)
        seconds += statistics.median(times)
        rows_read += amount.rows
    kept = sum(object_sizes(folder).values())
    return Recovered(seconds=seconds, rows_read=rows_read, wrong_rows=wrong_rows, kept_bytes=kept)


def _recover(folder: Path, interval: int, like: Tables) -> tuple[float, Amount, Tables]:
    """Recover one checkpoint; the baseline's rows come before the clock starts."""
    store = hf.open_run(folder).store
    head = Chain(store).head()
    assert head is not None
    checkpoint = head.entries[interval].info.id
    fetcher = Fetcher(store)
    plans = plan_checkpoint(fetcher, head, checkpoint)
    tables = each_column(like, torch.zeros_like)
    restore_rows(fetcher, [(p.first_generation(), tables[name]) for name, p in plans.items()])
    started_s = time.perf_counter()
    Chain(store).head()
    above = recover_above(store, head, checkpoint, tables)
    return time.perf_counter() - started_s, amount_of(above), tables


def _wrong_rows(found: Tables, expected: Tables) -> int:
    """Rows of which a weight or a slot differs in a bit."""
    return sum(int(differing(found[name], columns).sum()) for name, columns in expected.items())


def differing(found: Targets, expected: Targets) -> Tensor:
    """The rows of a table of which a weight or a slot differs in a bit."""
    wrong = [(found[key].view(torch.int32) != column.view(torch.int32)).flatten(1) for key, column in expected.items()]
    return torch.cat(wrong, dim=1).any(dim=1)
