"""The page's section on checkpoints: over time, and one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.report import charts
from holdfast.report.page import Chart, PageTable, Section
from holdfast.report.thinning import thinned, told_of_thinning
from holdfast.report.words import byte_unit, count, duration, how_many, percent, size, time_unit, when
from holdfast.types import CheckpointInfo

_COLUMNS = ("step", "kind", "tag", "created", "trainer", "rows", "size", "of full", "waited", "took")
_WORDS = ("kind", "tag")


def over_time_section(infos: Sequence[CheckpointInfo]) -> Section | None:
    """Sizes and times of all checkpoints."""
    if not infos:
        return None
    drawn = [_sizes(infos), _sums(infos)]
    waited = [info for info in infos if info.stall_s is not None]
    took = [info for info in infos if info.duration_s is not None]
    if waited:
        drawn.append(_times(waited, "stall_s", "How long training waited for each snapshot.", "waited"))
    if took:
        drawn.append(_times(took, "duration_s", "From each snapshot to its commit, in the background.", "took"))
    return Section(title="Checkpoints over time", text=told_of_thinning(len(infos)), charts=drawn)


def kept_section(infos: Sequence[CheckpointInfo], *, garbage: int) -> Section | None:
    """Every checkpoint, newest first."""
    if not infos:
        return None
    text = [f"{how_many(garbage, 'dropped item')} will be deleted by a later save or prune."] if garbage else []
    rows = [_row(info) for info in reversed(infos)]
    table = PageTable(caption="Checkpoints, newest first", columns=_COLUMNS, rows=rows, words=_WORDS)
    return Section(title="What is kept", text=text, tables=[table])


def _sizes(infos: Sequence[CheckpointInfo]) -> Chart:
    unit = byte_unit(info.size_bytes for info in infos)
    rows = [
        {
            **_point(info, info.size_bytes / unit.factor),
            "kind": info.kind.value,
            "abandoned": info.abandoned,
            "label": _told(info, f"{size(info.size_bytes)}, {percent(info.size_bytes, info.full_bytes)} of a full one"),
        }
        for info in thinned(infos, lambda info: info.size_bytes)
    ]
    caption = "What each checkpoint wrote." + (" Abandoned ones are pale." if any(i.abandoned for i in infos) else "")
    return Chart(caption=caption, spec=charts.sizes_over_time(rows, unit.name))


def _sums(infos: Sequence[CheckpointInfo]) -> Chart:
    full = list(itertools.accumulate(info.full_bytes for info in infos))
    written = list(itertools.accumulate(info.size_bytes for info in infos))
    unit = byte_unit([full[-1], written[-1]])
    rows = [
        {**_point(info, total / unit.factor), "name": name, "label": _told(info, f"{name} {size(total)} in all")}
        for name, totals in (("written", written), ("full saves", full))
        for info, total in thinned(list(zip(infos, totals, strict=True)), lambda each: each[1])
    ]
    caption = "All that these checkpoints wrote, and what full ones would have."
    return Chart(caption=caption, spec=charts.lines_over_time(rows, f"{unit.name} in all"))


def _times(infos: Sequence[CheckpointInfo], name: str, caption: str, verb: str) -> Chart:
    unit = time_unit(getattr(info, name) for info in infos)
    rows = [
        {
            **_point(info, getattr(info, name) / unit.factor),
            "label": _told(info, f"{verb} {duration(getattr(info, name))}"),
        }
        for info in thinned(infos, lambda info: getattr(info, name))
    ]
    return Chart(caption=caption, spec=charts.points_over_time(rows, unit.name))


def _point(info: CheckpointInfo, value: float) -> dict[str, Any]:
    return {"at_ms": 1000 * info.created_s, "value": value}


def _told(info: CheckpointInfo, what: str) -> str:
    return ", ".join(_words(info, what))


def _words(info: CheckpointInfo, what: str) -> Iterator[str]:
    yield f"step {count(info.step)}, {info.kind.value}"
    if info.tag:
        yield info.tag
    yield f"{when(info.created_s)}: {what}"


def _row(info: CheckpointInfo) -> list[str]:
    return [
        count(info.step),
        f"{info.kind.value} {info.standing}".rstrip(),
        info.tag or "",
        when(info.created_s),
        str(info.term),
        count(info.rows_written),
        size(info.size_bytes),
        percent(info.size_bytes, info.full_bytes),
        duration(info.stall_s),
        duration(info.duration_s),
    ]
