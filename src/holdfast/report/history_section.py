"""The page's section on failures, recoveries and their cost."""

from __future__ import annotations

from holdfast.events import Happening, HistoryEvent
from holdfast.figures import NOTHING
from holdfast.report import charts
from holdfast.report.facts import RunFacts
from holdfast.report.losses import Losses
from holdfast.report.page import Chart, PageTable, Section
from holdfast.report.words import count, duration, how_many, percent, when

_COLUMNS = ("from step", "what", "when", "by", "trainer", "work lost, at most", "idle, at least", "abandoned")
_BOUNDS = (
    "A run does not record when a trainer stopped. At a take-over, at most the longest interval between that trainer's "
    "saves counts as lost work; the rest, up to the next trainer's start, is idle time."
)


def history_section(facts: RunFacts) -> Section:
    """Who began the run, took it over and went back."""
    text = [
        "A trainer takes a run over after a failure, or simply to continue. Failed saves are reported in the trainer's "
        "log only."
    ]
    if facts.restores is not None:
        text.append(f"Up to the newest checkpoint the model was restored {how_many(facts.restores, 'time')}.")
    rows = [_row(event, lost) for event, lost in zip(facts.history, facts.losses, strict=True)]
    table = PageTable(caption="Events, oldest first", columns=_COLUMNS, rows=rows, words=("what", "by"))
    return Section(title="Failures and recoveries", text=text, tables=[table])


def _row(event: HistoryEvent, lost: Losses | None) -> list[str]:
    return [
        NOTHING if event.from_step is None else count(event.from_step),
        event.what.value,
        f"{'' if event.exact else 'before '}{when(event.at_s)}",
        event.writer or NOTHING,
        str(event.term),
        duration(lost.lost_s if lost else None),
        duration(lost.idle_s if lost and event.what is not Happening.WENT_BACK else None),
        count(event.abandoned) if event.what is Happening.WENT_BACK else NOTHING,
    ]


def overhead_section(facts: RunFacts) -> Section | None:
    """What saves and failures took of the run's time; None where the checkpoints do not tell."""
    if facts.stall_s is None or not facts.span_s:
        return None
    total = facts.loss
    causes = {"save": facts.stall_s, "lost": total.lost_s, "idle": total.idle_s}
    shares = [
        {
            "name": "this run",
            "cause": cause,
            "share": spent_s / facts.span_s,
            "order": order,
            "label": f"{cause}: {duration(spent_s)}, {percent(spent_s, facts.span_s)}",
        }
        for order, (cause, spent_s) in enumerate(causes.items())
    ]
    text = [
        f"{duration(facts.span_s)} passed between the first and the last recorded event of this run. Training waited "
        f"{duration(facts.stall_s)} for snapshots. At most {duration(total.lost_s)} of work was lost: trained after a "
        f"last save, or on a timeline that was abandoned. No trainer ran for at least {duration(total.idle_s)}.",
        _BOUNDS,
    ]
    caption = "save: training waited for snapshots. lost: work that was lost, at most. idle: no trainer ran, at least."
    chart = Chart(caption=caption, spec=charts.stacked_causes(shares, ["this run"]))
    return Section(title="Overhead", text=text, charts=[chart])
