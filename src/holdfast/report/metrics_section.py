"""The page's section on metrics: a chart over steps for each, and every value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.figures import NOTHING, number
from holdfast.report import charts
from holdfast.report.page import Chart, PageTable, Section
from holdfast.report.thinning import thinned, told_of_thinning
from holdfast.report.words import count, in_units, plain_unit
from holdfast.types import CheckpointInfo

_DIGITS = 6


def metrics_section(infos: Sequence[CheckpointInfo]) -> Section | None:
    """Whatever the checkpoints carry; None where they carry nothing."""
    told = [info for info in infos if info.metrics]
    if not told:
        return None
    names = sorted({name for info in told for name in info.metrics})
    drawn = [_chart(name, points) for name in names if (points := _points(name, told))]
    rows = [_row(info, names) for info in reversed(told)]
    table = PageTable(
        caption="Metrics, newest first", columns=("step", "checkpoint", *names), rows=rows, words=("checkpoint",)
    )
    return Section(title="Metrics", text=told_of_thinning(len(told)), charts=drawn, tables=[table])


def _points(name: str, infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """The checkpoints whose value can be drawn."""
    return [info for info in infos if math.isfinite(info.metrics.get(name, math.nan))]


def _chart(name: str, infos: Sequence[CheckpointInfo]) -> Chart:
    kept = thinned(infos, lambda info: info.metrics[name])
    unit = plain_unit(info.metrics[name] for info in kept)
    rows = [_point(info, name, unit.factor) for info in kept]
    pale = " Abandoned checkpoints are pale." if any(info.abandoned for info in kept) else ""
    spec = charts.values_over_steps(rows, in_units("", unit))
    return Chart(caption=f"{name} at each checkpoint.{pale}", spec=spec)


def _point(info: CheckpointInfo, name: str, factor: float) -> dict[str, Any]:
    value = info.metrics[name]
    return {
        "step": info.step,
        "value": value / factor,
        "abandoned": info.abandoned,
        "label": f"step {count(info.step)}: {name} {number(value, _DIGITS)}",
    }


def _row(info: CheckpointInfo, names: Sequence[str]) -> list[str]:
    values = [number(info.metrics[name], _DIGITS) if name in info.metrics else NOTHING for name in names]
    return [count(info.step), f"{info.kind.value} {info.standing}".rstrip(), *values]
