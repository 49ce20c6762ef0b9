"""What recovering in part saves, and what it costs in accuracy: CPR's figures 7, 9 and 12 on emulated failures.

A DLRM is trained on the synthetic stream while a virtual clock makes a job of 56 hours of it, with two failures. The
overheads are the clock's, over many schedules of failures. The accuracy is paired by seed: stream, start and failures
are the same, and a training without failures repeats bit for bit. Trainings are kept as lines beside ``--json`` and
not repeated; next to them goes what ``holdfast report --emulation`` draws.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.claims._emulation_cases import JOB, LOST, PLS, SERVERS, SWEEP, job, schedule
from benchmarks.claims._emulation_runs import PLANS, Lines, Plan, missing, train_all
from benchmarks.claims._emulation_statistics import Drops, Estimate, Slopes, correlation
from benchmarks.report import Figure, Report, Table
from holdfast.emulation import NAMES, Way, charged, ways
from holdfast.planner import Overheads, Recovery
from holdfast.planner.emulated import EmulatedJob, EmulatedRun, EmulatedStrategy

CLOCK_STEPS = 33_600  # six seconds each: the clock alone needs no training
SWEPT = ("cpr-vanilla", "cpr-ssu")
DRAWN = ("cpr-vanilla", "cpr-mfu", "cpr-ssu")
Shares = Mapping[str, Mapping[str, Overheads]]  # by group, by way


def run(scale: str, beside: Path | None = None) -> Report:
    """``beside`` is the file of the figures; trainings go next to it."""
    plan = PLANS[scale]
    with tempfile.TemporaryDirectory(prefix="holdfast-emulation-") as folder:
        target = beside or Path(folder) / "emulation.json"
        lines = Lines(target.with_suffix(".runs.jsonl"), plan.model)
        _train(plan, lines)
        drops, left = Drops(lines.read()), len(missing(plan, lines))
        told = json.dumps(_emulated_job(drops).to_dict(), indent=2) + "\n"
        target.with_suffix(".emulation.json").write_text(told, encoding="utf-8")
    seeds = range(plan.schedules)
    overheads = {
        percent: {way.name: strategy(way, seeds).overheads for way in ways(job(lost), PLS)}
        for percent, lost in LOST.items()
    }
    swept = {
        group: {way.name: strategy(way, seeds).overheads for way in ways(JOB, pls, SWEPT)}
        for group, pls in _budgets().items()
    }
    slopes = Slopes.of(drops, _groups(plan), DRAWN)
    return Report(
        title="What recovering in part saves and costs",
        tables=[_overhead_table(overheads), _drop_table(drops), _sweep_table(swept, drops), _slope_table(slopes)],
        figures={
            **_overhead_figures(overheads),
            **_sweep_figures(swept),
            **_drop_figures(drops),
            **_slope_figures(plan, drops, slopes),
            "trainings_left": left,
        },
    )


def _budgets() -> dict[str, float]:
    """The PLS budgets of figure 9, by the group of trainings that kept to them."""
    budgets = {"lost_12": PLS, **{f"pls_{percent}": pls for percent, pls in SWEEP.items()}}
    return dict(sorted(budgets.items(), key=lambda each: each[1]))


def strategy(way: Way, seeds: Sequence[int], drops: Drops | None = None, group: str = "") -> EmulatedStrategy:
    """A way to recover with every seed: its overheads by the clock, and the accuracy where that was trained."""
    runs = tuple(_run(way, seed, drops, f"{group}/{way.name}") for seed in seeds)
    return EmulatedStrategy(name=way.name, recovery=way.recovery, interval_s=way.interval_s, runs=runs)


def _run(way: Way, seed: int, drops: Drops | None, key: str) -> EmulatedRun:
    failures = schedule(way.job.lost_servers, seed)
    told = charged(way.emulation(failures, CLOCK_STEPS))
    found = EmulatedRun(seed=seed, overheads=told.overheads, failures=failures.failures, pls=told.pls)
    if drops is None:
        return found
    if way.recovery is Recovery.FULL:  # it trains what it lost again, and ends where nothing happened
        return replace(found, auc=drops.auc(seed), auc_drop=0.0)
    return replace(found, pls=drops.pls(seed, key), auc=drops.auc(seed, key), auc_drop=drops.drop(seed, key))


def _emulated_job(drops: Drops) -> EmulatedJob:
    """The setting of the paper's abstract, for the report page."""
    settings = ways(JOB, PLS)
    seeds = drops.seeds(*(f"lost_12/{way.name}" for way in settings if way.recovery is not Recovery.FULL))
    return EmulatedJob(
        title=f"56 hours, two failures of 12.5% of the tables, PLS {PLS:g}",
        total_s=JOB.total_s,
        servers=SERVERS,
        pls_budget=PLS,
        strategies=tuple(strategy(way, seeds, drops, "lost_12") for way in settings),
    )


def _train(plan: Plan, lines: Lines) -> None:
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("training", total=len(missing(plan, lines)))
        train_all(plan, lines, os.cpu_count() or 1, lambda count: progress.advance(task, count))


def _groups(plan: Plan) -> list[str]:
    return [f"draw_{draw}" for draw in range(plan.draws)]


def _overhead_figures(overheads: Shares) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for percent, by_way in overheads.items():
        ending = "" if percent == "12" else f"_lost_{percent}"
        shares = {name: each.share_of(JOB.total_s) for name, each in by_way.items()}
        cpr = max(share for name, share in shares.items() if name.startswith("cpr"))
        figures |= {f"overhead_{_underscored(name)}{ending}": share for name, share in shares.items()}
        figures[f"overhead_cpr{ending}"] = cpr  # the dearest of the four
        figures[f"overhead_reduction{ending}"] = 1 - cpr / shares["full"]
    return figures


def _sweep_figures(swept: Shares) -> dict[str, Figure]:
    return {
        f"overhead_{_underscored(name)}{_ending(group)}": each.share_of(JOB.total_s)
        for group, by_way in swept.items()
        for name, each in by_way.items()
    }


def _drop_figures(drops: Drops) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name, estimate in _drops(drops).items():
        figures |= _interval(f"auc_drop_{name}", estimate)
    seeds = drops.seeds()
    figures["auc_undisturbed"] = statistics.fmean(map(drops.auc, seeds))
    figures["seeds"] = len(seeds)
    lossy = "lost_12/cpr-vanilla"  # the budget is that of the mean
    figures["pls_mean"] = statistics.fmean(drops.pls(seed, lossy) for seed in drops.seeds(lossy))
    return figures


def _drops(drops: Drops) -> dict[str, Estimate]:
    """By the end of the figure's name. Full recovery loses nothing: the training is the same."""
    keys = {f"{_short(name)}{_ending(group)}": f"{group}/{name}" for group in _paper_groups() for name in NAMES}
    found = {name: drops.mean(key) for name, key in keys.items()}
    return {name: each for name, each in found.items() if each is not None}


def _paper_groups() -> list[str]:
    return [*(f"lost_{percent}" for percent in LOST), *(f"pls_{percent}" for percent in SWEEP)]


def _underscored(name: str) -> str:
    return name.replace("-", "_")


def _short(name: str) -> str:
    return name.removeprefix("cpr-")


def _ending(group: str) -> str:
    return "" if group == "lost_12" else f"_{group}"


def _slope_figures(plan: Plan, drops: Drops, slopes: Slopes) -> dict[str, Figure]:
    vanilla = slopes.slope("cpr-vanilla")
    figures: dict[str, Figure] = {"vanilla_slope_significant": int(vanilla.low > 0)}
    for name in DRAWN:
        figures |= _interval(f"{_short(name)}_slope", slopes.slope(name))
    for name in ("cpr-ssu", "cpr-mfu"):
        figures |= _interval(f"{_short(name)}_slope_over_vanilla", slopes.over(name, "cpr-vanilla"))
    keys = [f"{group}/cpr-vanilla" for group in _groups(plan)]
    figures["pls_auc_correlation"] = correlation(drops, keys)
    figures["drawn_runs"] = sum(len(drops.seeds(key)) for key in keys)
    return figures


def _interval(name: str, estimate: Estimate) -> dict[str, Figure]:
    return {name: estimate.value, f"{name}_lower": estimate.low, f"{name}_upper": estimate.high}


def _overhead_table(overheads: Shares) -> Table:
    rows: list[Sequence[Figure]] = []
    for percent, by_way in overheads.items():
        for name, each in by_way.items():
            parts = (each.save_s, each.load_s, each.lost_s, each.reschedule_s, each.total_s)
            rows.append((f"{percent}%", name, *(f"{part / JOB.total_s:.2%}" for part in parts)))
    headers = ("lost", "way", "save", "load", "lost", "reschedule", "overhead")
    return Table(caption="Overheads, mean over schedules of failures (figure 7)", headers=headers, rows=rows)


def _drop_table(drops: Drops) -> Table:
    rows: list[Sequence[Figure]] = [
        (name, f"{each.value:.5f}", f"{each.low:.5f}", f"{each.high:.5f}") for name, each in _drops(drops).items()
    ]
    return Table(caption="Loss of AUC", headers=("way", "mean", "95% from", "to"), rows=rows)


def _sweep_table(swept: Shares, drops: Drops) -> Table:
    """Figure 9: more PLS, less overhead, less accuracy."""
    rows: list[Sequence[Figure]] = []
    for group, pls in _budgets().items():
        for name, each in swept[group].items():
            drop = drops.mean(f"{group}/{name}")
            rows.append((pls, name, f"{each.share_of(JOB.total_s):.2%}", f"{drop.value:.5f}" if drop else "-"))
    return Table(caption="The PLS budget (figure 9)", headers=("PLS", "way", "overhead", "loss of AUC"), rows=rows)


def _slope_table(slopes: Slopes) -> Table:
    found = {name: slopes.slope(name) for name in DRAWN}
    rows: list[Sequence[Figure]] = [(name, each.value, each.low, each.high) for name, each in found.items()]
    return Table(caption="Loss of AUC per PLS (figure 12)", headers=("way", "slope", "95% from", "to"), rows=rows)
