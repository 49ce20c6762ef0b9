"""The time axis, labelled with dates in UTC."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

_MINUTE_S, _DAY_S = 60.0, 86400.0
_DATE = "%Y-%m-%d"


def time_axis(moments_s: Sequence[float]) -> alt.X:
    """Of the field ``at_ms``: dates, and above them the time of day where the moments are close."""
    axis = alt.Axis(labelExpr=_label(moments_s), labelOverlap=True, tickCount=5)
    return alt.X("at_ms:T", title=None, scale=_scale(moments_s), axis=axis)


def _label(moments_s: Sequence[float]) -> str:
    span_s = max(moments_s) - min(moments_s)
    if span_s > 4 * _DAY_S:
        return _formatted(_DATE)
    time_of_day = "%H:%M" if span_s > 5 * _MINUTE_S else "%H:%M:%S" if span_s > 5 else "%H:%M:%S.%L"
    return f"[{_formatted(time_of_day)}, {_formatted(_DATE)}]"


def _formatted(pattern: str) -> str:
    return f"utcFormat(datum.value, '{pattern}')"


def _scale(moments_s: Sequence[float]) -> alt.Scale:
    """With a little room at both ends; a second, where there is but one moment."""
    first, last = min(moments_s), max(moments_s)
    room_s = 0.03 * (last - first) or 1.0
    return alt.Scale(type="utc", domain=[1000 * (first - room_s), 1000 * (last + room_s)])
