"""The charts, as Vega-Lite that fits itself to the width it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

Rows = Sequence[Mapping[str, Any]]

_KINDS = {"full": "#1f5fa8", "differential": "#e0912f", "incremental": "#3a9c6b"}
_CAUSES = {
    "save": "#1f5fa8",
    "load": "#3a9c6b",
    "lost": "#c8453b",
    "reschedule": "#e0912f",
    "parity": "#8a63b5",
}
_INK = "#2f6db5"
_LIMIT = "#c8453b"
_TIME = alt.X("at_ms:T", title=None, scale=alt.Scale(type="utc"), axis=alt.Axis(labelOverlap=True, tickCount=5))
_LEGEND = alt.Legend(orient="top", title=None)


def sizes_over_time(rows: Rows) -> dict[str, Any]:
    """Each checkpoint at its time; of the fields ``at_ms``, ``size``, ``kind``, ``abandoned`` and for the tooltip."""
    present = {kind: color for kind, color in _KINDS.items() if any(row["kind"] == kind for row in rows)}
    base = alt.Chart(_data(rows)).encode(
        x=_TIME,
        y=alt.Y("size:Q", title="bytes written", axis=_bytes()),
        color=alt.Color("kind:N", scale=_scale(present), legend=_LEGEND),
        opacity=alt.condition("datum.abandoned", alt.value(0.35), alt.value(1)),
        tooltip=[alt.Tooltip(f"{name}:N", title=name) for name in ("step", "kind", "written", "created", "tag")],
    )
    return _spec(alt.layer(base.mark_rule(strokeWidth=1.5), base.mark_circle(size=60, opacity=1)))


def lines_over_time(rows: Rows, title: str, *, number: str = "~s") -> dict[str, Any]:
    """One line for each ``name``, of the fields ``at_ms`` and ``value``, which only changes at its points."""
    chart = (
        alt.Chart(_data(rows))
        .mark_line(interpolate="step-after", point=True)
        .encode(
            x=_TIME,
            y=alt.Y("value:Q", title=title, axis=alt.Axis(format=number, tickCount=5)),
            color=alt.Color("name:N", legend=_LEGEND),
        )
    )
    return _spec(chart)


def points_over_time(rows: Rows, title: str) -> dict[str, Any]:
    """The field ``value`` of each checkpoint."""
    chart = (
        alt.Chart(_data(rows))
        .mark_circle(size=45, color=_INK)
        .encode(x=_TIME, y=alt.Y("value:Q", title=title), tooltip=["step:N", "value:Q"])
    )
    return _spec(chart, height=140)


def shares(rows: Rows, steps: Sequence[str], columns: Sequence[str]) -> dict[str, Any]:
    """A field for each ``row`` and ``column``, the darker the larger its ``share``."""
    chart = (
        alt.Chart(_data(rows))
        .mark_rect()
        .encode(
            x=alt.X("column:O", title="replaced by step", sort=columns, axis=alt.Axis(labelAngle=-60)),
            y=alt.Y("row:O", title="written by step", sort=steps),
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(scheme="blues", domain=[0, 1]),
                legend=alt.Legend(orient="top", title="share of the row's bytes", format="%", gradientLength=160),
            ),
            tooltip=[alt.Tooltip("row:N", title="written by"), "column:N", alt.Tooltip("share:Q", format=".1%")],
        )
    )
    return _spec(chart, height=max(120, min(420, 16 * len(steps))))


def stacked_causes(rows: Rows, names: Sequence[str]) -> dict[str, Any]:
    """A bar for each ``name``, made of the ``share`` of each ``cause``."""
    present = {cause: color for cause, color in _CAUSES.items() if any(row["cause"] == cause for row in rows)}
    chart = (
        alt.Chart(_data(rows))
        .mark_bar()
        .encode(
            y=alt.Y("name:N", title=None, sort=names),
            x=alt.X("share:Q", title="of the training time", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color("cause:N", scale=_scale(present), legend=_LEGEND),
            order=alt.Order("order:Q"),
            tooltip=["name:N", "cause:N", alt.Tooltip("share:Q", format=".3%")],
        )
    )
    return _spec(chart, height=max(60, 32 * len(names)))


def dots(rows: Rows, names: Sequence[str], title: str, *, limit: float | None = None) -> dict[str, Any]:
    """A dot for each ``value`` beside its ``name``, a tick at the mean, and a line at a limit."""
    base = alt.Chart(_data(rows)).encode(y=alt.Y("name:N", title=None, sort=names))
    value = alt.X("value:Q", title=title, axis=alt.Axis(tickCount=5))
    layers: list[Any] = [
        base.mark_circle(size=45, opacity=0.6, color=_INK).encode(x=value, tooltip=["name:N", "seed:N", "value:Q"]),
        base.mark_tick(thickness=3, size=22, color=_INK).encode(x=alt.X("mean(value):Q", title=title)),
    ]
    if limit is not None:
        layers.append(
            alt.Chart(_data([{"limit": limit}])).mark_rule(color=_LIMIT, strokeDash=[4, 3]).encode(x="limit:Q")
        )
    return _spec(alt.layer(*layers), height=max(60, 32 * len(names)))


def moments(rows: Rows, title: str, *, end: float) -> dict[str, Any]:
    """A mark at each of the ``hours``, up to the end, beside its ``name``, in the order they come."""
    chart = (
        alt.Chart(_data(rows))
        .mark_point(shape="triangle-down", filled=True, size=90, color=_LIMIT)
        .encode(
            x=alt.X("hours:Q", title=title, scale=alt.Scale(domain=[0, end]), axis=alt.Axis(tickCount=8)),
            y=alt.Y("name:N", title=None, sort=None),
            tooltip=["name:N", "hours:Q", "servers:N"],
        )
    )
    return _spec(chart, height=max(60, 24 * len({row["name"] for row in rows})))


def _data(rows: Rows) -> alt.InlineData:
    return alt.InlineData(values=[dict(row) for row in rows])


def _scale(colors: Mapping[str, str]) -> alt.Scale:
    return alt.Scale(domain=list(colors), range=list(colors.values()))


def _bytes() -> alt.Axis:
    return alt.Axis(format="~s", tickCount=5)


def _spec(chart: Any, *, height: int = 220) -> dict[str, Any]:
    drawn = chart.properties(width="container", height=height, autosize=alt.AutoSizeParams(type="fit-x"))
    spec: dict[str, Any] = drawn.configure(font="system-ui, sans-serif").configure_view(stroke=None).to_dict()
    del spec["$schema"]  # an address, which nothing needs to ask
    return spec
