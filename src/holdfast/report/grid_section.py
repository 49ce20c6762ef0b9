"""The page's section on the grid."""

from __future__ import annotations

import math
from typing import Any

from holdfast.checkpoint.inspect.grid_picture import Cohort, GridPicture
from holdfast.report import charts
from holdfast.report.page import Chart, PageTable, Section
from holdfast.report.words import count, how_many, percent, size

_COLUMNS = 24  # of the picture, at most
_ROWS = 40
_ALIVE = "alive"


def grid_section(picture: GridPicture | None) -> Section | None:
    """How much each checkpoint wrote, and by which later one it was replaced."""
    if picture is None:
        return None
    text = [_summary(picture)]
    cohorts = picture.cohorts[-_ROWS:]
    if not cohorts:
        return Section(title="Grid", text=text)
    if len(picture.cohorts) > len(cohorts):
        text.append(f"The picture shows the newest {len(cohorts)}; the table lists all.")
    steps = [_label(cohort) for cohort in cohorts]
    groups = _groups(picture)
    spec = charts.shares(
        [cell for cohort in cohorts for cell in _cells(cohort, groups)],
        steps,
        [*dict.fromkeys(groups.values()), _ALIVE],
    )
    caption = (
        "Each line is what one checkpoint wrote; each column shows how much of it was replaced by which later one."
    )
    return Section(title="Grid", text=text, charts=[Chart(caption=caption, spec=spec)], tables=[_table(picture)])


def _summary(picture: GridPicture) -> str:
    if not picture.cohorts:
        return f"No checkpoints above the baseline of step {count(picture.baseline.step)} yet."
    return (
        f"{how_many(len(picture.cohorts), 'checkpoint')} above the baseline of step {count(picture.baseline.step)}: "
        f"{size(picture.size_bytes)}, {size(picture.alive_bytes)} of it alive; {size(picture.unused_bytes)} in bundles "
        "that nothing refers to."
    )


def _label(cohort: Cohort) -> str:
    return count(cohort.checkpoint.step)


def _groups(picture: GridPicture) -> dict[str, str]:
    """The label of the column that each replacing checkpoint belongs to."""
    width = math.ceil(len(picture.cohorts) / _COLUMNS)
    return {
        cohort.checkpoint.id: _label(picture.cohorts[number - number % width])
        for number, cohort in enumerate(picture.cohorts)
    }


def _cells(cohort: Cohort, groups: dict[str, str]) -> list[dict[str, Any]]:
    replaced = {_ALIVE: cohort.alive_bytes}
    for by, size_bytes in cohort.replaced_bytes.items():
        replaced[groups[by]] = replaced.get(groups[by], 0) + size_bytes
    whole = max(1, cohort.size_bytes)
    return [
        {
            "row": _label(cohort),
            "column": column,
            "share": part / whole,
            "label": f"step {_label(cohort)}: {percent(part, whole)} {_fate(column)}",
        }
        for column, part in replaced.items()
        if part
    ]


def _fate(column: str) -> str:
    return column if column == _ALIVE else f"replaced by step {column}"


def _table(picture: GridPicture) -> PageTable:
    steps = {cohort.checkpoint.id: _label(cohort) for cohort in picture.cohorts}
    rows = [
        [
            _label(cohort),
            size(cohort.size_bytes),
            percent(cohort.alive_bytes, cohort.size_bytes),
            count(cohort.rounds),
            count(cohort.bundles),
            steps.get(cohort.arranged_by or "", "-"),
        ]
        for cohort in reversed(picture.cohorts)
    ]
    columns = ("step", "size", "alive", "rounds", "bundles", "arranged up to")
    return PageTable(caption="Increments, newest first", columns=columns, rows=rows)
