"""How precisely rows are stored, on a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.checkpoint.stored import StoredRows
from holdfast.report import charts
from holdfast.report.page import Chart, Section, Table
from holdfast.report.words import count, finite, number, size


def stored_section(stored: Sequence[StoredRows]) -> Section | None:
    """Codecs, sizes and losses of the rows that the newest checkpoint stands on."""
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
        charts=[_chart(lossy)] if lossy else [],
        tables=[Table(columns=("table", "weights", "rows", "size", "mean loss"), rows=rows, words=2)],
    )


def _explained() -> str:
    return "The loss is the mean distance (l2) of a stored weight row from the one that was saved."


def _figures(group: Sequence[StoredRows]) -> list[str]:
    rows = sum(each.rows for each in group)
    loss = math.fsum(each.loss * each.rows for each in group) / max(1, rows)
    return [count(rows), size(sum(each.size_bytes for each in group)), number(loss)]


def _chart(lossy: Sequence[StoredRows]) -> Chart:
    rows = [
        {"at_ms": 1000 * each.checkpoint.created_s, "name": each.table, "value": finite(each.loss)} for each in lossy
    ]
    return Chart(
        caption="Mean loss of each checkpoint's rows.", spec=charts.lines_over_time(rows, "mean loss", number="~g")
    )
