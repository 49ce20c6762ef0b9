"""What priority policies rest on and take: how well uses tell changes (figure 6), memory and time (table 1).

A DLRM is trained by SGD on the synthetic stream. Of every row, how often it was used is held against how far it moved,
as CPR does after 4096 iterations. Memory and time are those of the selectors that a training with ``hf.Partial`` has,
on the largest tables: what they hold beside the weights, what a step takes longer, and what one choice takes, in CPU
time of one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

import holdfast as hf
from benchmarks.claims._emulation_trainer import DlrmTraining, Model
from benchmarks.claims._torch_prepack import threads
from benchmarks.data.synthetic import ClickStream
from benchmarks.report import Figure, Report, Table
from benchmarks.training import build_dlrm, train_step
from holdfast.checkpoint.track.selectors import Selector, selector
from holdfast.checkpoint.training.tables import find_tables
from holdfast.policy.priority import Priority, largest

POLICIES: Mapping[str, Priority] = {"scar": hf.SCAR(), "mfu": hf.MFU(), "ssu": hf.SSU()}
DIM = 64  # of the tables that memory and time are measured on: CPR's for Criteo Terabyte
SEED = 3
KAGGLE_RATE = 0.1  # of SGD in the published training of a DLRM on Criteo Kaggle; the emulation's is larger
PAPERS_CORRELATION = 0.983
PAPERS_MEMORY = {"scar": "100%", "mfu": "0.78-6.25%", "ssu": "0.097-0.78%"}
BATCHES = 16
CHOICES = 5
_Numbers: TypeAlias = NDArray[np.int64] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to train, and to time."""

    model: Model
    timed_scale: float  # of Criteo Kaggle's cardinalities
    timed_batch: int
    timed_steps: int


PLANS = {
    "tiny": Plan(
        model=Model(scale=0.0002, steps=60, batch_size=32, test_samples=100),
        timed_scale=0.0005,
        timed_batch=64,
        timed_steps=4,
    ),
    "small": Plan(
        model=Model(scale=0.003, steps=4096, batch_size=128, test_samples=100),
        timed_scale=0.02,
        timed_batch=2048,
        timed_steps=60,
    ),
    "full": Plan(
        model=Model(scale=0.03, steps=4096, batch_size=128, test_samples=100),
        timed_scale=0.125,
        timed_batch=2048,
        timed_steps=300,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Of the rows of a table: how often each was used, how far it is from where it began, and how far it went (l2)."""

    uses: NDArray[np.int64]
    distances: NDArray[np.float64]
    paths: NDArray[np.float64]  # the lengths of all its gradients together: what it would be if none cancelled another

    @property
    def correlation(self) -> float:
        """Pearson's, over all rows."""
        return _pearson(self.uses, self.distances)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a policy takes: its memory beside the weights, seconds of a step, seconds of a choice."""

    memory_fraction: float
    step_s: float
    choice_s: float


def run(scale: str) -> Report:
    plan = PLANS[scale]
    with threads(1):  # small steps are not faster on several, and its CPU time is then that of the work
        moves = _moves(replace(plan.model, table_rate=KAGGLE_RATE))
        faster = _moves(plan.model)
        step_s, costs = _costs(plan)
    return Report(
        title="What priority policies rest on and take",
        tables=[_correlation_table(moves), _cost_table(costs)],
        figures={
            **_correlation_figures("", moves),
            **_correlation_figures("_at_emulations_rate", faster),
            "paper_access_update_correlation": PAPERS_CORRELATION,
            **_cost_figures(step_s, costs),
        },
    )


def _moves(model: Model) -> list[Moves]:
    """Train, and see what became of the rows; the largest tables first."""
    training = DlrmTraining(model, SEED)
    tables = list(training.model.emb.parameters())
    before = [table.detach().clone() for table in tables]
    uses = [torch.zeros(len(table), dtype=torch.int64) for table in tables]
    paths = [torch.zeros(len(table), dtype=torch.float64) for table in tables]
    for number in range(model.steps):
        training.step(number)
        for table, used, path in zip(tables, uses, paths, strict=True):
            assert table.grad is not None
            ids, values = table.grad._indices()[0], table.grad._values()
            used.index_add_(0, ids, torch.ones_like(ids))
            path.index_add_(0, ids, values.norm(dim=1).double())
    found = [
        Moves(
            uses=used.numpy(),
            distances=(table.detach() - start).double().norm(dim=1).numpy(),
            paths=path.numpy(),
        )
        for table, start, used, path in zip(tables, before, uses, paths, strict=True)
    ]
    return sorted(found, key=lambda each: -len(each.uses))


def _correlation_figures(ending: str, moves: Sequence[Moves]) -> dict[str, Figure]:
    uses, distances, paths = (
        np.concatenate([getattr(each, name) for each in moves]) for name in ("uses", "distances", "paths")
    )
    top = _largest_tables(moves)
    share = len(uses) // 8 or 1
    return {
        f"access_update_correlation{ending}": _pearson(uses, distances),
        f"access_update_correlation_largest_tables{ending}": statistics.fmean(each.correlation for each in top),
        f"access_path_correlation{ending}": _pearson(uses, paths),
        f"access_update_rank_correlation{ending}": _pearson(_ranks(uses), _ranks(distances)),
        f"most_used_share_of_largest_change{ending}": _captured(uses, distances, share),
    }


def _largest_tables(moves: Sequence[Moves]) -> list[Moves]:
    """Those that priority saves choose rows of."""
    names = largest({str(number): len(each.uses) for number, each in enumerate(moves)})
    return [moves[int(name)] for name in names]


def _captured(uses: NDArray[np.int64], distances: NDArray[np.float64], rows: int) -> float:
    """The change that the most used rows hold, as a share of what as many rows can hold at most."""
    chosen = np.argsort(-uses, kind="stable")[:rows]
    return float(distances[chosen].sum() / np.sort(distances)[-rows:].sum())


def _pearson(first: _Numbers, second: _Numbers) -> float:
    return float(np.corrcoef(first, second)[0, 1]) if np.ptp(first) and np.ptp(second) else 0.0


def _ranks(values: _Numbers) -> NDArray[np.float64]:
    """Ranks, those of equal values their mean."""
    _, group, size = np.unique(values, return_inverse=True, return_counts=True)
    found: NDArray[np.float64] = (np.cumsum(size) - (size - 1) / 2)[group]
    return found


def _costs(plan: Plan) -> tuple[float, dict[str, Cost]]:
    """The median step without any of them, and what each takes."""
    stream = ClickStream(SEED, plan.timed_scale)
    batches = [stream.batch(number, plan.timed_batch) for number in range(BATCHES)]
    learner = build_dlrm(stream.cardinalities, DIM, optimizer="sgd", seed=SEED)
    tables = {table.name: table for table in find_tables({"": learner.model}, learner.optimizers)}
    sizes = {name: table.parameter.nbytes for name, table in tables.items()}
    chosen = [tables[name] for name in sorted(largest(sizes))]
    selectors = {
        name: [selector(policy, table, 0, table.rows) for table in chosen] for name, policy in POLICIES.items()
    }
    gradients = [table.parameter for table in chosen]
    steps, seen = list[float](), {name: list[float]() for name in POLICIES}
    for number in range(plan.timed_steps + 2):
        started_s = time.thread_time()
        train_step(learner.model, batches[number % BATCHES], learner.optimizers)
        steps.append(time.thread_time() - started_s)
        for name, each in selectors.items():
            seen[name].append(_see(each, [parameter.grad for parameter in gradients]))
    weights = sum(table.parameter.nbytes for table in chosen)
    costs = {
        name: Cost(
            memory_fraction=sum(one.memory_bytes for one in each) / weights,
            step_s=statistics.fmean(seen[name][2:]),
            choice_s=_choose(each),
        )
        for name, each in selectors.items()
    }
    return statistics.median(steps[2:]), costs


def _see(selectors: Sequence[Selector], gradients: Sequence[torch.Tensor | None]) -> float:
    """Show them a step's gradients; the seconds that takes. SCAR does not look."""
    started_s = time.thread_time()
    for each, gradient in zip(selectors, gradients, strict=True):
        if each.sees_gradients:
            assert gradient is not None
            each.see(gradient)
    return time.thread_time() - started_s


def _choose(selectors: Sequence[Selector]) -> float:
    """The seconds of a choice in all tables."""
    seconds = []
    for _ in range(CHOICES):
        started_s = time.thread_time()
        for each in selectors:
            each.choose()
        seconds.append(time.thread_time() - started_s)
    return statistics.median(seconds)


def _cost_figures(step_s: float, costs: Mapping[str, Cost]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {
        "priority_memory_fraction": costs["mfu"].memory_fraction,  # of the policy that hf.Partial takes by itself
        "priority_step_ms": 1e3 * step_s,
    }
    for name, cost in costs.items():
        figures |= {
            f"priority_memory_fraction_{name}": cost.memory_fraction,
            f"priority_step_us_{name}": 1e6 * cost.step_s,
            f"priority_step_fraction_{name}": cost.step_s / step_s,
            f"priority_choice_ms_{name}": 1e3 * cost.choice_s,
        }
    return figures


def _correlation_table(moves: Sequence[Moves]) -> Table:
    rows = [
        (len(each.uses), int((each.uses > 0).sum()), f"{each.correlation:.3f}")
        for each in moves[: len(_largest_tables(moves))]
    ]
    return Table(caption="Uses and changes of rows (figure 6)", headers=("rows", "used", "correlation"), rows=rows)


def _cost_table(costs: Mapping[str, Cost]) -> Table:
    rows = [
        (
            name,
            f"{each.memory_fraction:.3%}",
            PAPERS_MEMORY[name],
            f"{1e6 * each.step_s:.0f}",
            f"{1e3 * each.choice_s:.2f}",
        )
        for name, each in costs.items()
    ]
    headers = ("policy", "memory", "the paper's", "a step, µs", "a choice, ms")
    return Table(caption=f"What they take (table 1), dim {DIM}", headers=headers, rows=rows)
