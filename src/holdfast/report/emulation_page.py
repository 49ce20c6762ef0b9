"""The report page of an emulation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from holdfast.figures import NOTHING, number
from holdfast.planner.emulated import EmulatedJob, EmulatedStrategy
from holdfast.planner.job import Overheads
from holdfast.planner.recovery import Recovery
from holdfast.planner.schedule import Failure
from holdfast.report import charts
from holdfast.report.page import Card, Chart, PageTable, ReportPage, Section
from holdfast.report.words import count, duration, finite, percent, spread

_HOUR_S = 3600.0
_CAUSES = [field.name for field in fields(Overheads)]


def emulation_page(job: EmulatedJob) -> ReportPage:
    """A comparison of every strategy."""
    sections = [_overheads(job), _measured(job, "pls", "Portion of lost samples", "PLS used", limit=job.pls_budget)]
    sections.append(_measured(job, "auc_drop", "Accuracy", "AUC lost relative to the training without failures"))
    sections.append(_failures(job))
    seeds = {run.seed for strategy in job.strategies for run in strategy.runs}
    return ReportPage(
        title=job.title,
        subtitle=f"An emulated job of {duration(job.total_s)} on {count(job.servers)} servers, {len(seeds)} seeds.",
        notices=_notices(job),
        cards=list(_cards(job)),
        sections=[section for section in sections if section is not None],
    )


def _notices(job: EmulatedJob) -> list[str]:
    budget = job.pls_budget
    over = [each.name for each in job.strategies if budget is not None and max(each.values("pls")) > budget]
    return [f"Beyond the PLS budget of {number(budget)} with at least one seed: {', '.join(over)}."] if over else []


def _cards(job: EmulatedJob) -> Iterator[Card]:
    best = min(job.strategies, key=lambda each: each.overheads.total_s)
    yield Card(label="Least overhead", value=percent(best.overheads.total_s, job.total_s), note=best.name)
    reference = _reference(job)
    if reference is not None and reference is not best and reference.overheads.total_s:
        less = 1 - best.overheads.total_s / reference.overheads.total_s
        yield Card(label="Reduction", value=percent(less, 1), note=f"of the overhead of {reference.name}")
    drops = [(drop, each.name) for each in job.strategies if (drop := each.mean("auc_drop")) is not None]
    if drops:
        worst, name = max(drops)
        yield Card(label="Largest mean AUC drop", value=number(worst), note=name)
    if job.pls_budget is not None:
        yield Card(label="PLS budget", value=number(job.pls_budget))


def _reference(job: EmulatedJob) -> EmulatedStrategy | None:
    return next((each for each in job.strategies if each.recovery is Recovery.FULL), None)


def _overheads(job: EmulatedJob) -> Section:
    names = [strategy.name for strategy in job.strategies]
    used = [cause for cause in _CAUSES if any(getattr(each.overheads, cause) for each in job.strategies)]
    rows = [
        {
            "name": each.name,
            "cause": cause.removesuffix("_s"),
            "share": getattr(each.overheads, cause) / job.total_s,
            "order": order,
            "label": f"{each.name}, {cause.removesuffix('_s')}: {percent(getattr(each.overheads, cause), job.total_s)}",
        }
        for each in job.strategies
        for order, cause in enumerate(used)
    ]
    columns = (
        "strategy",
        "saves every",
        *(cause.removesuffix("_s") for cause in used),
        "in all",
        "PLS",
        "AUC",
        "AUC drop",
    )
    return Section(
        title="Overhead",
        charts=[
            Chart(caption="Time that is not training; means over the seeds.", spec=charts.stacked_causes(rows, names))
        ],
        tables=[
            PageTable(
                caption="Strategies: means over the seeds, with their standard errors",
                columns=columns,
                rows=[_row(job, each, used) for each in job.strategies],
                words=("strategy",),
            )
        ],
    )


def _row(job: EmulatedJob, strategy: EmulatedStrategy, causes: list[str]) -> list[str]:
    overheads = strategy.overheads
    return [
        strategy.name,
        "never" if strategy.interval_s is None else duration(strategy.interval_s),
        *(percent(getattr(overheads, cause), job.total_s) for cause in causes),
        percent(overheads.total_s, job.total_s),
        _spread(strategy.values("pls")),
        number(strategy.mean("auc"), 5),
        _spread(strategy.values("auc_drop")),
    ]


def _spread(values: list[float]) -> str:
    """The mean, and its standard error where there are several."""
    if not values:
        return NOTHING
    mean = statistics.fmean(values)
    if len(values) < 2:
        return number(mean)
    return spread(mean, statistics.stdev(values) / len(values) ** 0.5)


def _measured(job: EmulatedJob, name: str, title: str, axis: str, *, limit: float | None = None) -> Section | None:
    rows: list[dict[str, Any]] = [
        {"name": strategy.name, "value": value, "label": f"{strategy.name}, seed {run.seed}: {number(value)}"}
        for strategy in job.strategies
        for run in strategy.runs
        if (value := finite(getattr(run, name))) is not None
    ]
    if not rows:
        return None
    caption = "A dot for each seed, a bar at their mean." + (" The line is the budget." if limit is not None else "")
    names = [strategy.name for strategy in job.strategies]
    return Section(title=title, charts=[Chart(caption=caption, spec=charts.dots(rows, names, axis, limit=limit))])


def _failures(job: EmulatedJob) -> Section:
    by_seed = {run.seed: run.failures for strategy in reversed(job.strategies) for run in strategy.runs}
    marks = [_mark(seed, failure) for seed, failures in sorted(by_seed.items()) for failure in failures]
    if not marks:
        return Section(title="Failures", text=["There were none."])
    rows = [[mark["name"], mark["after"], mark["servers"]] for mark in marks]
    caption = "When failures struck; every strategy meets the same ones."
    table = PageTable(caption="Failures by seed", columns=("seed", "after", "servers lost"), rows=rows, words=("seed",))
    return Section(
        title="Failures",
        charts=[Chart(caption=caption, spec=charts.moments(marks, "hours of training", end=job.total_s / _HOUR_S))],
        tables=[table],
    )


def _mark(seed: int, failure: Failure) -> dict[str, Any]:
    after, servers = duration(failure.at_s), ", ".join(map(str, failure.servers))
    label = f"seed {seed}, after {after}: servers {servers}"
    hours = failure.at_s / _HOUR_S
    return {"name": f"seed {seed}", "hours": hours, "after": after, "servers": servers, "label": label}
