"""What resuming from few bits costs: test AUC and log loss beside the same run without failures (figure 10).

A DLRM is trained by SGD on the synthetic stream; restores are spread evenly. A run and its plain twin have the same
seed, start and samples, and repeat bit for bit, so that they differ by their restores alone. The control moves every
value by one unit in the last place instead. Bounds are the upper ends of one-sided intervals of 95% of the mean drop,
in percent of the AUC, beside the paper's 0.01%. Seeds are added until the intervals are narrow or time is up; each
training is kept in a file beside ``--json`` and not repeated.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.claims._accuracy_plot import plot
from benchmarks.claims._accuracy_seeds import PLAIN, Result, Results, train_seeds
from benchmarks.claims._accuracy_settings import SETTINGS
from benchmarks.claims._accuracy_statistics import TOLERATED, Drops, drops, whole_seeds
from benchmarks.claims._accuracy_trainer import Job
from benchmarks.report import Figure, Report, Table

CYCLE = 8  # intervals, in each of which a quarter of the rows moves, per baseline: as the claim "reduction" finds it
NARROW = TOLERATED / 3  # from the mean to the bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much to train."""

    job: Job
    least_seeds: int
    most_seeds: int
    budget_s: float  # no seed is begun after it


PLANS = {
    "tiny": Plan(
        job=Job(
            scale=0.0002,
            dim=8,
            width=8,
            batch_size=32,
            steps=110,
            test_samples=1000,
            points=2,
            point_samples=500,
            baseline_steps=8,
        ),
        least_seeds=2,
        most_seeds=2,
        budget_s=60,
    ),
    "small": Plan(
        job=Job(
            scale=0.001,
            dim=16,
            width=64,
            batch_size=512,
            steps=606,
            test_samples=65536,
            points=6,
            point_samples=8192,
            baseline_steps=CYCLE * 10,
        ),
        least_seeds=2,
        most_seeds=4,
        budget_s=90,
    ),
    "full": Plan(
        job=Job(
            scale=0.002,
            dim=16,
            width=64,
            batch_size=1024,
            steps=2500,
            test_samples=400_000,
            points=8,
            point_samples=32768,
            baseline_steps=CYCLE * 10,
        ),
        least_seeds=8,
        most_seeds=48,
        budget_s=48 * 60,
    ),
}


def run(scale: str, beside: Path | None = None) -> Report:
    """``beside`` is the file of the figures; trainings and the plot go next to it."""
    plan = PLANS[scale]
    with tempfile.TemporaryDirectory(prefix="holdfast-accuracy-") as folder:
        target = beside or Path(folder) / "accuracy.json"
        results = _train(plan, Results(target.with_suffix(".runs.jsonl"), plan.job))
        found = drops(results)
        plot(found, plan.job, target.with_suffix(".svg"))
    tables = [_auc_table(found), _log_loss_table(found)]
    return Report(title="What resuming from few bits costs", tables=tables, figures=_figures(plan, results, found))


def _train(plan: Plan, results: Results) -> list[Result]:
    started_s = time.monotonic()

    def is_enough(found: Sequence[Result]) -> bool:
        if len(whole_seeds(found)) < plan.least_seeds:
            return False
        narrow = all(each.auc.half_width <= NARROW for name, each in drops(found).items() if SETTINGS[name].is_bar)
        return narrow or time.monotonic() - started_s > plan.budget_s

    processes = min(2, os.cpu_count() or 1)
    return train_seeds(results, plan.job, processes=processes, seeds=range(plan.most_seeds), is_enough=is_enough)


def _figures(plan: Plan, results: Sequence[Result], found: Mapping[str, Drops]) -> dict[str, Figure]:
    """Drops in percent."""
    seeds = whole_seeds(results)
    plain = [each.auc for each in results if each.setting == PLAIN and each.seed in seeds]
    figures: dict[str, Figure] = {
        "seeds": len(seeds),
        "samples": plan.job.samples,
        "plain_auc": sum(plain) / len(plain),
        "bounds_above_the_papers": sum(
            each.auc.bound > TOLERATED for name, each in found.items() if SETTINGS[name].is_bar
        ),
    }
    for name, each in found.items():
        figures[f"{name}_auc_drop_bound_percent"] = 100 * each.auc.bound
        figures[f"{name}_auc_drop_percent"] = 100 * each.auc.mean
        figures[f"{name}_auc_drop_deviation_percent"] = 100 * each.auc.deviation
        figures[f"{name}_log_loss_rise_bound_percent"] = 100 * each.log_loss.bound
        figures[f"{name}_log_loss_rise_percent"] = 100 * each.log_loss.mean
    return figures


def _auc_table(found: Mapping[str, Drops]) -> Table:
    rows: list[Sequence[Figure]] = [
        (
            name,
            f"{each.auc.mean:+.4%}",
            f"{each.auc.deviation:.4%}",
            f"{each.auc.bound:+.4%}",
            "holds" if each.auc.bound <= TOLERATED else f"{each.auc.bound - TOLERATED:.4%} above",
        )
        for name, each in found.items()
    ]
    seeds = max(each.auc.seeds for each in found.values())
    caption = f"Drop of the AUC beside the run without failures, {seeds} seeds (names end in bits x restores)"
    return Table(caption=caption, headers=("setting", "mean", "deviation", "bound", "the paper's 0.01%"), rows=rows)


def _log_loss_table(found: Mapping[str, Drops]) -> Table:
    rows: list[Sequence[Figure]] = [
        (name, f"{each.log_loss.mean:+.4%}", f"{each.log_loss.deviation:.4%}", f"{each.log_loss.bound:+.4%}")
        for name, each in found.items()
    ]
    return Table(caption="Rise of the log loss", headers=("setting", "mean", "deviation", "bound"), rows=rows)
