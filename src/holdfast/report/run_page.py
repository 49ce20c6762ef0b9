"""The page of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from holdfast.events import Happening, HistoryEvent
from holdfast.report import charts
from holdfast.report.facts import RunFacts
from holdfast.report.grid_section import grid_section
from holdfast.report.page import Card, Chart, Page, Section, Table
from holdfast.report.stored_section import stored_section
from holdfast.report.words import count, duration, how_many, measured, number, percent, size, when
from holdfast.types import CheckpointInfo

_MOST_DRAWN = 2000
_MOST_LISTED = 300


def run_page(facts: RunFacts) -> Page:
    """Everything there is to tell."""
    sections = [_over_time(facts), _kept(facts), grid_section(facts.grid), _history(facts)]
    sections += [_pls(facts), _overhead(facts), stored_section(facts.stored)]
    notices = list(facts.problems)
    if not facts.checkpoints:
        notices.append("This run holds no checkpoint yet.")
    return Page(
        title=f"Run {facts.url}",
        subtitle=f"Run {facts.run}, as it was on {when(facts.made_s)} UTC.",
        notices=notices,
        cards=list(_cards(facts)),
        sections=[section for section in sections if section is not None],
    )


def _cards(facts: RunFacts) -> Iterator[Card]:
    infos = facts.checkpoints
    abandoned = sum(info.abandoned for info in infos)
    yield Card(label="Checkpoints", value=count(len(infos)), note=f"{abandoned} of them abandoned" if abandoned else "")
    yield Card(label="Trainers so far", value=count(facts.term), note="each take-over counts one")
    if not infos:
        return
    newest = infos[-1]
    yield Card(label="Newest step", value=count(newest.step), note=when(newest.created_s))
    yield Card(label="Kept", value=size(facts.size_bytes), note=f"full saves: {size(facts.full_bytes)}")
    yield Card(label="Reduction", value=_times_less(facts.full_bytes, facts.size_bytes), note="against full saves")
    if facts.stall_s is not None:
        yield Card(label="Training waited", value=duration(facts.stall_s), note="for all of them together")
    if facts.meter is not None:
        yield Card(label="PLS used", value=number(facts.meter.pls), note=_budget(facts))


def _times_less(full_bytes: int, size_bytes: int) -> str:
    return f"{full_bytes / size_bytes:.3g}×" if size_bytes else "-"


def _budget(facts: RunFacts) -> str:
    budget = facts.meter.budget if facts.meter else None
    return f"of a budget of {budget:g}" if budget is not None else "no budget was set"


def _over_time(facts: RunFacts) -> Section | None:
    infos = facts.checkpoints[-_MOST_DRAWN:]
    if not infos:
        return None
    left = len(facts.checkpoints) - len(infos)
    text = [f"The newest {count(len(infos))} are drawn; {how_many(left, 'older one')} left out."] if left else []
    drawn = [
        Chart(
            caption="What each checkpoint wrote; abandoned ones are pale.", spec=charts.sizes_over_time(_sizes(infos))
        ),
        Chart(
            caption="All that these checkpoints wrote, and what full ones would have.",
            spec=charts.lines_over_time(list(_sums(infos)), "bytes in all"),
        ),
    ]
    for name, caption, title in (
        ("stall_s", "How long training waited for each snapshot.", "waited, s"),
        ("duration_s", "From each snapshot to its commit, in the background.", "written in, s"),
    ):
        if rows := [_point(info, name) for info in infos if getattr(info, name) is not None]:
            drawn.append(Chart(caption=caption, spec=charts.points_over_time(rows, title)))
    return Section(title="Checkpoints over time", text=text, charts=drawn)


def _at_ms(info: CheckpointInfo) -> float:
    return 1000 * info.created_s


def _sizes(infos: tuple[CheckpointInfo, ...]) -> list[dict[str, Any]]:
    return [
        {
            "at_ms": _at_ms(info),
            "size": info.size_bytes,
            "kind": info.kind.value,
            "abandoned": info.abandoned,
            "step": info.step,
            "written": f"{size(info.size_bytes)}, {percent(info.size_bytes, info.full_bytes)} of a full one",
            "created": when(info.created_s),
            "tag": info.tag or "",
        }
        for info in infos
    ]


def _sums(infos: tuple[CheckpointInfo, ...]) -> Iterator[dict[str, Any]]:
    for name, values in (
        ("written", [info.size_bytes for info in infos]),
        ("full saves", [info.full_bytes for info in infos]),
    ):
        for info, total in zip(infos, itertools.accumulate(values), strict=True):
            yield {"at_ms": _at_ms(info), "name": name, "value": total}


def _point(info: CheckpointInfo, name: str) -> dict[str, Any]:
    return {"at_ms": _at_ms(info), "step": info.step, "value": getattr(info, name)}


def _kept(facts: RunFacts) -> Section | None:
    infos = facts.checkpoints[-_MOST_LISTED:]
    if not infos:
        return None
    columns = ("kind", "tag", "created", "step", "term", "rows", "size", "of full", "waited", "took", "metrics")
    left = len(facts.checkpoints) - len(infos)
    text = [f"{how_many(left, 'older checkpoint')} are kept as well and not listed here."] if left else []
    if facts.garbage:
        text.append(f"{how_many(facts.garbage, 'dropped item')} will be deleted by a later save or prune.")
    rows = [_row(info) for info in reversed(infos)]
    return Section(title="What is kept", text=text, tables=[Table(columns=columns, rows=rows, words=3)])


def _row(info: CheckpointInfo) -> list[str]:
    return [
        f"{info.kind.value} {info.standing}".rstrip(),
        info.tag or "",
        when(info.created_s),
        count(info.step),
        str(info.term),
        count(info.rows_written),
        size(info.size_bytes),
        percent(info.size_bytes, info.full_bytes),
        duration(info.stall_s),
        duration(info.duration_s),
        measured(info.metrics),
    ]


def _history(facts: RunFacts) -> Section:
    text = [
        "A trainer that takes a run over starts after a failure, or simply to go on. Saves that failed are told by the "
        "trainer's log alone."
    ]
    if facts.restores is not None:
        text.append(f"Up to the newest checkpoint the model was restored {how_many(facts.restores, 'time')}.")
    columns = ("what", "when", "by", "from step", "trainer", "since the last save", "abandoned")
    rows = [_event(event) for event in facts.history]
    return Section(title="Failures and recoveries", text=text, tables=[Table(columns=columns, rows=rows, words=3)])


def _event(event: HistoryEvent) -> list[str]:
    return [
        event.what.value,
        f"{'' if event.exact else 'before '}{when(event.at_s)}",
        event.writer or "-",
        "-" if event.from_step is None else count(event.from_step),
        str(event.term),
        duration(event.idle_s),
        count(event.abandoned) if event.what is Happening.WENT_BACK else "-",
    ]


def _pls(facts: RunFacts) -> Section | None:
    meter = facts.meter
    if meter is None:
        return None
    text = [
        f"{how_many(meter.failures, 'failure')} lost the effect of {meter.pls:.3g} of all samples: {_budget(facts)}."
    ]
    if meter.warning:
        text.append(meter.warning)
    spec = charts.dots(
        [{"name": "PLS", "value": meter.pls, "seed": ""}], ["PLS"], "portion of lost samples", limit=meter.budget
    )
    return Section(
        title="Portion of lost samples", text=text, charts=[Chart(caption="The line is the budget.", spec=spec)]
    )


def _overhead(facts: RunFacts) -> Section | None:
    if facts.stall_s is None or not facts.span_s:
        return None
    causes = {"save": facts.stall_s, "lost": facts.idle_s}
    shares = [
        {"name": "this run", "cause": cause, "share": spent_s / facts.span_s, "order": order}
        for order, (cause, spent_s) in enumerate(causes.items())
    ]
    caption = (
        "save: training waited for snapshots. lost: from the last save before a take-over to the next trainer's start."
    )
    text = [
        f"Of the {duration(facts.span_s)} between the first and the last thing known of this run, training waited "
        f"{duration(facts.stall_s)} for snapshots; {duration(facts.idle_s)} lay between last saves and take-overs: "
        "training that was lost, or nobody trained."
    ]
    return Section(
        title="Overhead", text=text, charts=[Chart(caption=caption, spec=charts.stacked_causes(shares, ["this run"]))]
    )
