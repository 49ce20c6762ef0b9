"""``holdfast simulate``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.common import JsonFlag, errors, output
from holdfast.cli.drawing import as_json, print_json
from holdfast.cli.tables import FittedTable
from holdfast.figures import number

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.planner import FailureModel, FailureSchedule, Job
    from holdfast.planner.emulated import EmulatedJob, EmulatedStrategy

_HOUR_S = 3600.0
_UNIFORM = "uniform"


def simulate(
    hours: Annotated[float, typer.Option(metavar="H", help="How long the job trains without failures.")] = 56.0,
    mtbf_hours: Annotated[float, typer.Option(metavar="H", help="Time between failures of the job.")] = 28.0,
    failures: Annotated[
        str,
        typer.Option(metavar="MODEL", help="uniform (the expected number), exponential, gamma, weibull, lognormal."),
    ] = _UNIFORM,
    shape: Annotated[float, typer.Option(metavar="X", help="Shape of gamma and weibull; sigma of lognormal.")] = 0.7,
    fail_at: Annotated[
        list[float] | None, typer.Option(metavar="H", help="Or fail after H hours; may be repeated.")
    ] = None,
    save_minutes: Annotated[float, typer.Option(metavar="M", help="Training's wait for a save.")] = 5.65,
    load_minutes: Annotated[float, typer.Option(metavar="M", help="To read a checkpoint back.")] = 3.0,
    reschedule_minutes: Annotated[float, typer.Option(metavar="M", help="Until a failed node is replaced.")] = 2.0,
    repair_minutes: Annotated[float, typer.Option(metavar="M", help="Until parity has made up for a server.")] = 5.0,
    servers: Annotated[int, typer.Option(metavar="N", help="Nodes that hold tables.")] = 8,
    lost_servers: Annotated[int, typer.Option(metavar="N", help="Nodes lost per failure.")] = 1,
    pls: Annotated[float, typer.Option(metavar="SHARE", help="Samples whose effect CPR may lose.")] = 0.1,
    r: Annotated[float, typer.Option("--r", metavar="SHARE", help="Rows in a priority save.")] = 0.125,
    strategy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Emulate only this; may be repeated.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Trainings per strategy, each with its own failures.", min=1)
    ] = 2,
    first_seed: Annotated[int, typer.Option(metavar="N", help="Seed of the first one.", min=0)] = 0,
    steps: Annotated[int, typer.Option(metavar="N", help="Training steps that stand for the job.")] = 800,
    to: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the JSON to this file, for holdfast report."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Train a small model through emulated failures: what each way to recover costs in time and accuracy."""
    from holdfast.emulation import NAMES, Contest, ways
    from holdfast.emulation.sample import SampleTraining
    from holdfast.planner import Job

    job = Job(
        total_s=hours * _HOUR_S,
        mtbf_s=mtbf_hours * _HOUR_S,
        save_s=save_minutes * 60,
        load_s=load_minutes * 60,
        reschedule_s=reschedule_minutes * 60,
        servers=servers,
        lost_servers=lost_servers,
    )
    numbers = range(first_seed, first_seed + seeds)
    contest = Contest(
        build=lambda seed: SampleTraining(seed, steps),
        steps=steps,
        ways=ways(job, pls, strategy or NAMES, r=r, repair_s=repair_minutes * 60),
        schedules={seed: _schedule(job, failures, shape, fail_at, seed) for seed in numbers},
    )
    title = (
        f"{number(hours, 6)} hours of training, {lost_servers} of {servers} servers lost per failure, PLS {number(pls)}"
    )
    with _one_thread(), _step_bar(contest.trained_steps) as on_step:
        found = contest.hold(title, pls_budget=pls, on_step=on_step)
    if to is not None:
        to.write_text(as_json(found.to_dict()) + "\n", encoding="utf-8")
    if json:
        print_json(found.to_dict())
    else:
        _print(found)


def _schedule(job: Job, name: str, shape: float, fail_at: list[float] | None, seed: int) -> FailureSchedule:
    from holdfast.planner import FailureSchedule

    if fail_at:
        times_s = [each * _HOUR_S for each in fail_at]
        return FailureSchedule.given(
            times_s, total_s=job.total_s, servers=job.servers, lost_servers=job.lost_servers, seed=seed
        )
    if name == _UNIFORM:
        return FailureSchedule.uniform(
            round(job.failures), total_s=job.total_s, servers=job.servers, lost_servers=job.lost_servers, seed=seed
        )
    return FailureSchedule.drawn(
        _model(name, shape, job.mtbf_s),
        total_s=job.total_s,
        servers=job.servers,
        lost_servers=job.lost_servers,
        seed=seed,
    )


def _model(name: str, shape: float, mtbf_s: float) -> FailureModel:
    from holdfast.planner import Exponential, Gamma, LogNormal, Weibull

    match name:
        case "exponential":
            return Exponential(mean_s=mtbf_s)
        case "gamma":
            return Gamma(shape=shape, scale_s=mtbf_s).scaled_to(mtbf_s)
        case "weibull":
            return Weibull(shape=shape, scale_s=mtbf_s).scaled_to(mtbf_s)
        case "lognormal":
            return LogNormal(sigma=shape, median_s=mtbf_s).scaled_to(mtbf_s)
    known = f"{_UNIFORM}, exponential, gamma, weibull or lognormal"
    raise typer.BadParameter(f"unknown failure model {name!r}; use {known}", param_hint="--failures")


@contextmanager
def _one_thread() -> Iterator[None]:
    """So small a model gains nothing from more, and sums in one order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _step_bar(steps: int) -> Iterator[Callable[[], None]]:
    """A step progress bar on standard error while the block runs; nothing if that is not a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = errors()
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("training", total=steps)
        yield lambda: bar.advance(task)


def _print(found: EmulatedJob) -> None:
    runs = found.strategies[0].runs
    failures = sum(len(run.failures) for run in runs)
    output().print(f"{found.title}; failures in {len(runs)} training(s): {failures}")
    results = FittedTable("strategy", "save every", "overhead", "PLS", "AUC", "AUC drop")
    times = FittedTable("strategy", "save", "load", "lost", "resched.", "parity", title="Overhead by cause")
    for each in found.strategies:
        results.add_row(*_results(each, found.total_s))
        spent = each.overheads
        parts = (spent.save_s, spent.load_s, spent.lost_s, spent.reschedule_s, spent.parity_s)
        times.add_row(each.name, *(f"{part_s / found.total_s:.2%}" for part_s in parts))
    output().print(results)
    output().print(times)


def _results(each: EmulatedStrategy, total_s: float) -> Iterator[str]:
    falls_back = each.recovery.value == "full" != each.name
    yield f"{each.name} (recovers fully)" if falls_back else each.name
    yield "never" if each.interval_s is None else f"{number(each.interval_s / _HOUR_S)} h"
    yield f"{each.overheads.total_s / total_s:.2%}"
    for name, digits in (("pls", 3), ("auc", 4), ("auc_drop", 5)):
        yield f"{each.mean(name):.{digits}f}"
