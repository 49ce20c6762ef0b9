"""The page's section on precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.inspect.stored_precision import StoredRows
from holdfast.figures import number
from holdfast.report import charts
from holdfast.report.page import Chart, PageTable, Section
from holdfast.report.thinning import thinned
from holdfast.report.words import count, in_units, plain_unit, size

_COLUMNS = ("table", "weights", "rows", "size", "mean loss")


def stored_section(stored: Sequence[StoredRows]) -> Section | None:
    """Codecs, sizes and losses of the rows that the newest checkpoint depends on."""
    if not stored:
        return None
    groups: dict[tuple[str, str], list[StoredRows]] = {}
    for each in stored:
        groups.setdefault((each.table, each.codec), []).append(each)
    rows = [[*key, *_figures(group)] for key, group in sorted(groups.items())]
    lossy = [each for each in stored if each.loss]
    return Section(
        title="Precision of what is stored",
        text=["Every row is stored exactly." if not lossy else _explained()],
        charts=[_chart(drawn)] if (drawn := [each for each in lossy if math.isfinite(each.loss)]) else [],
        tables=[
            PageTable(caption="Stored rows by table and precision", columns=_COLUMNS, rows=rows, words=_COLUMNS[:2])
        ],
    )


def _explained() -> str:
    return "The loss is the mean distance (l2) of a stored weight row from the one that was saved."


def _figures(group: Sequence[StoredRows]) -> list[str]:
    rows = sum(each.rows for each in group)
    loss = math.fsum(each.loss * each.rows for each in group) / max(1, rows)
    return [count(rows), size(sum(each.size_bytes for each in group)), number(loss)]


def _chart(lossy: Sequence[StoredRows]) -> Chart:
    names = _most_lossy(lossy)
    told = [each for each in lossy if each.table in names]
    unit = plain_unit(each.loss for each in told)
    rows = [
        _point(each, unit.factor)
        for name in names
        for each in thinned([each for each in told if each.table == name], lambda each: each.loss)
    ]
    left = len({each.table for each in lossy}) - len(names)
    rest = f" The {len(names)} tables with the largest are drawn." if left else ""
    spec = charts.lines_over_time(rows, in_units("mean loss", unit))
    return Chart(caption=f"Mean loss of each checkpoint's rows.{rest}", spec=spec)


def _most_lossy(lossy: Sequence[StoredRows]) -> list[str]:
    """As many tables as there are colours."""
    largest: dict[str, float] = {}
    for each in lossy:
        largest[each.table] = max(each.loss, largest.get(each.table, 0.0))
    return sorted(sorted(largest, key=lambda name: -largest[name])[: len(charts.SERIES)])


def _point(each: StoredRows, factor: float) -> dict[str, Any]:
    return {
        "at_ms": 1000 * each.checkpoint.created_s,
        "name": each.table,
        "value": each.loss / factor,
        "label": f"{each.table}, step {count(each.checkpoint.step)}: {number(each.loss)}",
    }
