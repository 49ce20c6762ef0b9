"""The charts, in Vega-Lite. Colours are the page's variables, which follow its mode; ``label`` describes one mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from holdfast.report.time_axis import time_axis
from holdfast.report.words import in_units, plain_unit

Rows = Sequence[Mapping[str, Any]]

SERIES = tuple(f"var(--c{number})" for number in range(1, 9))
_KINDS = dict(zip(("full", "differential", "incremental"), SERIES, strict=False))
_CAUSES = {
    "save": "var(--c1)",
    "load": "var(--c3)",
    "lost": "var(--c4)",
    "reschedule": "var(--c2)",
    "parity": "var(--c5)",
    "idle": "var(--idle)",
}
_MARKS = {
    "checkpoint": "var(--c1)",
    "death": "var(--c4)",
    "at work again": "var(--c3)",
    "went back": "var(--c2)",
    "resized": "var(--c5)",
}
_SHAPES = {
    "checkpoint": "diamond",
    "death": "triangle-down",
    "at work again": "triangle-up",
    "went back": "triangle-left",
    "resized": "square",
}
_INK = "var(--c1)"
_LIMIT = "var(--c4)"
_PALE = 0.35
_WIDTH = 440  # of every chart: two stand side by side on a desk, one fills a phone
_LETTERS = 56  # of a legend, side by side


def sizes_over_time(rows: Rows, unit: str) -> dict[str, Any]:
    """Each checkpoint at its time; of the fields ``at_ms``, ``value``, ``kind`` and ``abandoned``."""
    base = alt.Chart(_data(rows)).encode(
        x=_time(rows),
        y=alt.Y("value:Q", title=unit, axis=_ticks()),
        color=_colors("kind", _present(_KINDS, rows, "kind")),
        opacity=alt.condition("datum.abandoned", alt.value(_PALE), alt.value(1)),
    )
    points = base.mark_circle(size=_point_size(rows)).encode(description="label:N")
    return _spec(alt.layer(base.mark_rule(strokeWidth=1.5), points))


def lines_over_time(rows: Rows, title: str) -> dict[str, Any]:
    """One line for each ``name``, of the fields ``at_ms`` and ``value``, which only changes at its points."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    base = alt.Chart(_data(rows)).encode(
        x=_time(rows),
        y=alt.Y("value:Q", title=title, axis=_ticks()),
        color=_colors("name", dict(zip(names, SERIES, strict=False))),
    )
    points = base.mark_circle(size=_point_size(rows) / 2, opacity=1).encode(description="label:N")
    return _spec(alt.layer(base.mark_line(interpolate="step-after", strokeWidth=1.5), points))


def speeds_over_time(rows: Rows, marks: Rows, title: str) -> dict[str, Any]:
    """A line, of the fields ``at_ms`` and ``value``, and above it marks, each of a kind ``what``."""
    top = 1.15 * max(row["value"] for row in rows)  # marks stand above the line
    value = alt.Y("value:Q", title=title, axis=_ticks(), scale=alt.Scale(domainMin=0, domainMax=top or 1.0))
    line = alt.Chart(_data(rows)).mark_line(color=_INK, strokeWidth=1.5)
    layers: list[Any] = [line.encode(x=_time([*rows, *marks]), y=value)]
    points = alt.Chart(_data(rows)).mark_circle(color=_INK, size=_point_size(rows) / 3, opacity=1)
    layers.append(points.encode(x=_time([*rows, *marks]), y=value, description="label:N"))
    if marks:
        present = _present(_MARKS, marks, "what")
        kinds = alt.Scale(domain=list(present), range=[_SHAPES[name] for name in present])
        marked = alt.Chart(_data(marks)).mark_point(filled=True, size=70, opacity=1)
        layers.append(
            marked.encode(
                x=_time([*rows, *marks]),
                y=alt.value(4),  # pixels from the top
                color=_colors("what", present),
                shape=alt.Shape("what:N", scale=kinds, legend=None),
                description="label:N",
            )
        )
    return _spec(alt.layer(*layers))


def points_over_time(rows: Rows, title: str) -> dict[str, Any]:
    """The field ``value`` of each checkpoint."""
    chart = (
        alt.Chart(_data(rows))
        .mark_circle(size=_point_size(rows), color=_INK, opacity=1)
        .encode(x=_time(rows), y=alt.Y("value:Q", title=title, axis=_ticks()), description="label:N")
    )
    return _spec(chart, height=160)


def values_over_steps(rows: Rows, title: str) -> dict[str, Any]:
    """The field ``value`` at each ``step``: a line for the live timeline, pale points for ``abandoned`` ones."""
    step = alt.X("step:Q", title="step", scale=alt.Scale(zero=False, nice=False, padding=8), axis=_whole_ticks())
    base = alt.Chart(_data(rows)).encode(x=step, y=alt.Y("value:Q", title=title, scale=_near(), axis=_ticks()))
    line = base.transform_filter("!datum.abandoned").mark_line(color=_INK, strokeWidth=1.5)
    points = base.mark_circle(size=_point_size(rows), color=_INK).encode(
        opacity=alt.condition("datum.abandoned", alt.value(_PALE), alt.value(1)), description="label:N"
    )
    return _spec(alt.layer(line, points), height=160)


def shares(rows: Rows, steps: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
    """A field for each ``row`` and ``column``, the denser the larger its ``share``."""
    legend = alt.Legend(
        orient="top",
        title="share of the row's bytes",
        format="%",
        values=[0.25, 0.5, 0.75, 1],
        symbolFillColor=_INK,
        symbolStrokeColor=_INK,
    )
    chart = (
        alt.Chart(_data(rows))
        .mark_rect(color=_INK)
        .encode(
            x=alt.X("column:O", title="replaced by step", sort=columns, axis=alt.Axis(labelAngle=-60)),
            y=alt.Y("row:O", title="written by step", sort=steps),
            opacity=alt.Opacity("share:Q", scale=alt.Scale(domain=[0, 1], range=[0.08, 1]), legend=legend),
            description="label:N",
        )
    )
    return _spec(chart, height=max(120, min(480, 16 * len(steps))))


def stacked_causes(rows: Rows, names: Sequence[str]) -> dict[str, Any]:
    """A bar for each ``name``, made of the ``share`` of each ``cause``."""
    chart = (
        alt.Chart(_data(rows))
        .mark_bar()
        .encode(
            y=alt.Y("name:N", title=None, sort=names),
            x=alt.X("share:Q", title="of the time", axis=alt.Axis(format="~%", tickCount=4)),
            color=_colors("cause", _present(_CAUSES, rows, "cause")),
            order=alt.Order("order:Q"),
            description="label:N",
        )
    )
    return _spec(chart, height=max(60, 32 * len(names)))


def dots(rows: Rows, names: Sequence[str], title: str, *, limit: float | None = None) -> dict[str, Any]:
    """A dot for each ``value`` next to its ``name``, a tick at the mean, and a line at a limit."""
    unit = plain_unit([*(row["value"] for row in rows), limit or 0.0])
    title = in_units(title, unit)
    rows = [{**row, "value": row["value"] / unit.factor} for row in rows]
    base = alt.Chart(_data(rows)).encode(y=alt.Y("name:N", title=None, sort=names))
    value = alt.X("value:Q", title=title, axis=_ticks())
    layers: list[Any] = [
        base.mark_circle(size=45, opacity=0.7, color=_INK).encode(x=value, description="label:N"),
        base.mark_tick(thickness=3, size=22, color=_INK, aria=False).encode(x=alt.X("mean(value):Q", title=title)),
    ]
    if limit is not None:
        line = alt.Chart(_data([{"limit": limit / unit.factor}])).mark_rule(
            color=_LIMIT, strokeDash=[4, 3], strokeWidth=2
        )
        layers.append(line.encode(x="limit:Q"))
    return _spec(alt.layer(*layers), height=max(60, 32 * len(names)))


def moments(rows: Rows, title: str, *, end: float) -> dict[str, Any]:
    """A mark at each of the ``hours``, up to the end, next to its ``name``, in the given order."""
    chart = (
        alt.Chart(_data(rows))
        .mark_point(shape="triangle-down", filled=True, size=90, color=_LIMIT, opacity=1)
        .encode(
            x=alt.X("hours:Q", title=title, scale=alt.Scale(domain=[0, end]), axis=alt.Axis(tickCount=6)),
            y=alt.Y("name:N", title=None, sort=None),
            description="label:N",
        )
    )
    return _spec(chart, height=max(60, 24 * len({row["name"] for row in rows})))


def _data(rows: Rows) -> alt.InlineData:
    return alt.InlineData(values=[dict(row) for row in rows])


def _present(colors: Mapping[str, str], rows: Rows, field: str) -> dict[str, str]:
    return {name: color for name, color in colors.items() if any(row[field] == name for row in rows)}


def _colors(field: str, colors: Mapping[str, str]) -> alt.Color:
    """A colour for each value of a field, with a legend in as few lines as its names need."""
    columns = max(1, _LETTERS // (4 + max(map(len, colors), default=0)))
    legend = alt.Legend(orient="top", title=None, symbolOpacity=1, labelLimit=380, columns=columns)
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(colors), range=list(colors.values())), legend=legend)


def _time(rows: Rows) -> alt.X:
    return time_axis([row["at_ms"] / 1000 for row in rows])


def _point_size(rows: Rows) -> float:
    """In square pixels; many points are small ones."""
    return max(8.0, min(45.0, 4000 / len(rows)))


def _near() -> alt.Scale:
    return alt.Scale(zero=False, padding=8)


def _ticks() -> alt.Axis:
    return alt.Axis(tickCount=5)


def _whole_ticks() -> alt.Axis:
    return alt.Axis(tickCount=5, tickMinStep=1, format=",d", labelOverlap=True)


def _spec(chart: Any, *, height: int = 200) -> dict[str, Any]:
    drawn = chart.properties(width=_WIDTH, height=height, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return dict(drawn.properties(config=_CONFIG, padding=_PADDING).to_dict())


# Half of a date reaches beyond the axis, and the reader's font may be wider than the one it was laid out with.
_PADDING = {"left": 10, "top": 4, "right": 30, "bottom": 2}
_CONFIG = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "domainColor": "var(--soft)",
        "tickColor": "var(--soft)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 140,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--soft)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
}
