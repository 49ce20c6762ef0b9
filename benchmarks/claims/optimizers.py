"""How many rows a second a server updates, relative to sparse steps of torch.optim.

A push has the rows of one worker's step, 2048 samples of 26 tables, each row once and in ascending order, as workers
send them; they are spread evenly over a shard that no cache holds. torch is given the same rows, coalesced. Both run on
one thread, as a server does, and take turns. Ids that repeat are sorted and summed first: that is measured as well.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.report import Figure, Report, Table
from holdfast.kernels import optimize
from holdfast.policy import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad

DIM, LR, SEED = 64, 0.01, 3
PUSHES = 4  # with ids of their own, so that none finds its rows in a cache
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": SGD(LR),
    "momentum": SGD(LR, momentum=0.9),
    "adagrad": Adagrad(LR),
    "rowwise_adagrad": RowwiseAdagrad(LR),
    "adam": Adam(LR),
}
_TORCH: Mapping[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {  # on sparse gradients, row by row
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=LR),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=LR),
    "adam": lambda parameters: torch.optim.SparseAdam(parameters, lr=LR),
}

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to measure."""

    rows: int
    push_rows: int
    repeats: int


PLANS = {
    "tiny": Plan(rows=500, push_rows=50, repeats=2),
    "small": Plan(rows=250_000, push_rows=2048 * 26, repeats=12),
    "full": Plan(rows=2_000_000, push_rows=2048 * 26, repeats=60),
}


def run(scale: str) -> Report:
    plan = PLANS[scale]
    optimize.warm_up()
    with _one_torch_thread():
        seconds = {name: _measure(name, plan) for name in OPTIMIZERS}
    return Report(
        title="Updates of rows on a server",
        tables=[_table(seconds, plan)],
        figures=_figures(seconds, plan) | {"optimizer_call_us": 1e6 * _call_s(plan.repeats)},
    )


@contextlib.contextmanager
def _one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # else a warning from torch's own steps
            yield
    finally:
        torch.set_num_threads(threads)


def _measure(name: str, plan: Plan) -> dict[str, float]:
    """Median seconds of a push: ours, ours with ids that repeat, and torch's where it has one."""
    draw = np.random.default_rng(SEED)
    rule = OPTIMIZERS[name].rule()
    weights = draw.standard_normal((plan.rows, DIM), np.float32)
    gradients = draw.standard_normal((plan.push_rows, DIM), np.float32)
    once = [np.sort(draw.choice(plan.rows, plan.push_rows, replace=False)) for _ in range(PUSHES)]
    repeated = [draw.integers(0, plan.rows, plan.push_rows) for _ in range(PUSHES)]
    updater = optimize.RowUpdater(rule, weights, optimize.new_slots(rule, plan.rows, DIM))
    jobs: dict[str, Callable[[int], object]] = {
        "push": lambda number: updater(once[number], gradients, lr=LR),
        "repeated": lambda number: updater(repeated[number], gradients, lr=LR),
    }
    if name in _TORCH:
        jobs["torch"] = torch_step(name, torch.nn.Parameter(torch.from_numpy(weights.copy())), once, gradients)
    return _taking_turns(jobs, plan.repeats)


def torch_step(name: str, weight: torch.nn.Parameter, ids: Sequence[Ids], gradients: Floats) -> Callable[[int], object]:
    """A step with the ids of one of the pushes."""
    optimizer, values = _TORCH[name]([weight]), torch.from_numpy(gradients)

    def step(number: int) -> None:
        where = torch.from_numpy(ids[number])[None]
        weight.grad = torch.sparse_coo_tensor(where, values, weight.shape, is_coalesced=True)
        optimizer.step()

    return step


def _taking_turns(jobs: Mapping[str, Callable[[int], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, after one round that counts for none."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(1 + repeats):
        for name, job in jobs.items():
            started_s = time.perf_counter()
            job(number % PUSHES)
            seconds[name].append(time.perf_counter() - started_s)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def _call_s(repeats: int) -> float:
    """What a push costs beside its rows: one of a single row."""
    rule, weights = OPTIMIZERS["adagrad"].rule(), np.zeros((1, DIM), np.float32)
    updater = optimize.RowUpdater(rule, weights, optimize.new_slots(rule, 1, DIM))
    ids, gradients, seconds = np.zeros(1, np.int64), np.zeros((1, DIM), np.float32), []
    for _ in range(100 * repeats):
        started_s = time.perf_counter()
        updater(ids, gradients, lr=LR)
        seconds.append(time.perf_counter() - started_s)
    return statistics.median(seconds)


def _figures(seconds: Mapping[str, Mapping[str, float]], plan: Plan) -> dict[str, Figure]:
    figures: dict[str, Figure] = {"optimizer_push_rows": plan.push_rows, "optimizer_shard_rows": plan.rows}
    for name, found in seconds.items():
        figures[f"{name}_rows_per_s"] = plan.push_rows / found["push"]
        figures[f"{name}_repeated_rows_per_s"] = plan.push_rows / found["repeated"]
        if "torch" in found:
            figures[f"{name}_over_torch_speedup"] = found["torch"] / found["push"]
    return figures


def _table(seconds: Mapping[str, Mapping[str, float]], plan: Plan) -> Table:
    def cell(found: Mapping[str, float], job: str) -> str:
        return f"{plan.push_rows / found[job] / 1e6:.1f}" if job in found else "-"

    rows = [(name, *(cell(found, job) for job in ("push", "repeated", "torch"))) for name, found in seconds.items()]
    headers = ("optimizer", "ours", "ours, ids that repeat", "torch")
    return Table(caption=f"Million rows of {DIM} a second, pushes of {plan.push_rows:,}", headers=headers, rows=rows)
