"""Claims about clusters that are measured in parts, each of which can be run by itself."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console

from benchmarks.claims._cluster_job import JobPlan
from benchmarks.ending import end_at_sigterm
from benchmarks.report import Figure, Report, Table, machine, show, write_json

Plan = TypeVar("Plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one part measured, or several."""

    figures: Mapping[str, Figure]
    tables: Sequence[Table] = ()


def measured(parts: Mapping[str, Callable[[Plan], Found]], names: Iterable[str], plan: Plan) -> Found:
    """Some parts, one after another. What each of them found is printed at once, should a later one be cut off."""
    found = []
    for name in names:
        found.append(parts[name](plan))
        print(f"{name}: {json.dumps(found[-1].figures)}", file=sys.stderr, flush=True)
    return Found(
        figures={name: value for each in found for name, value in each.figures.items()},
        tables=[table for each in found for table in each.tables],
    )


def job_figures(job: JobPlan) -> dict[str, Figure]:
    """What was trained, and on what."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "job_rows": job.rows,
        "job_dim": job.dim,
        "job_batch_size": job.batch_size,
        "job_cores_per_worker": job.cores or "any",
        "job_device": device,
    }


def command(
    benchmark: str,
    parts: Iterable[str],
    scales: Iterable[str],
    run: Callable[..., Report],
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """``python -m benchmarks.claims.BENCHMARK PART ... --scale full --json FILE``.

    Args:
        benchmark: Its name.
        parts: That can be named.
        scales: That can be chosen.
        run: Gets the scale, the parts that are named, and further options by their names.
        more: Further options: arguments for ``add_argument``.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.claims.{benchmark}")
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="all that suit the machine, if none is named")
    parser.add_argument("--scale", choices=list(scales), default="full")
    parser.add_argument("--json", type=Path)
    for name, arguments in (more or {}).items():
        parser.add_argument(f"--{name}", **arguments)
    options = vars(parser.parse_args())
    scale, file = options.pop("scale"), options.pop("json")
    end_at_sigterm()
    report = run(scale, **options)
    show(report, Console())
    if file:
        write_json(report, file, {"benchmark": benchmark, "scale": scale, **machine()})
