"""The report page of a run."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.figures import number
from holdfast.policy.pls import PlsMeter
from holdfast.report import charts
from holdfast.report.checkpoints_section import kept_section, over_time_section
from holdfast.report.facts import RunFacts
from holdfast.report.grid_section import grid_section
from holdfast.report.history_section import history_section, overhead_section
from holdfast.report.jobs_section import jobs_section
from holdfast.report.metrics_section import metrics_section
from holdfast.report.page import Card, Chart, ReportPage, Section
from holdfast.report.stored_section import stored_section
from holdfast.report.words import count, duration, how_many, percent, size, times, when


def run_page(facts: RunFacts) -> ReportPage:
    """Everything there is to tell."""
    infos = facts.checkpoints
    sections = [metrics_section(infos), over_time_section(infos), kept_section(infos, garbage=facts.garbage)]
    sections += [jobs_section(facts.jobs), history_section(facts), overhead_section(facts), _pls(facts.meter)]
    sections += [grid_section(facts.grid), stored_section(facts.stored)]
    notices = list(facts.problems)
    if not infos:
        notices.append("This run holds no checkpoint yet.")
    return ReportPage(
        title=f"Run {facts.url}",
        subtitle=f"Run {facts.run}, as it was on {when(facts.made_s)} UTC.",
        notices=notices,
        cards=list(_cards(facts)),
        sections=[section for section in sections if section is not None],
    )


def _cards(facts: RunFacts) -> Iterator[Card]:
    infos = facts.checkpoints
    if infos:
        yield Card(label="Newest step", value=count(infos[-1].step), note=when(infos[-1].created_s))
    abandoned = sum(info.abandoned for info in infos)
    note = f"{count(abandoned)} of them abandoned" if abandoned else ""
    yield Card(label="Checkpoints", value=count(len(infos)), note=note)
    yield Card(label="Trainers so far", value=count(facts.term), note="each take-over counts one")
    if not infos:
        return
    yield Card(label="Kept", value=size(facts.size_bytes), note=f"full saves: {size(facts.full_bytes)}")
    yield Card(label="Reduction", value=times(facts.full_bytes, facts.size_bytes), note="relative to full saves")
    if facts.stall_s is not None:
        yield Card(label="Training waited", value=duration(facts.stall_s), note="for all of them together")
    if any(facts.losses):
        yield Card(label="Work lost", value=duration(facts.loss.lost_s), note="at most")
        yield Card(label="Idle", value=duration(facts.loss.idle_s), note="at least, before take-overs")
    if facts.meter is not None:
        yield Card(label="PLS used", value=number(facts.meter.pls), note=_budget(facts.meter))


def _budget(meter: PlsMeter) -> str:
    return f"of a budget of {number(meter.budget)}" if meter.budget is not None else "no budget was set"


def _pls(meter: PlsMeter | None) -> Section | None:
    if meter is None:
        return None
    text = [
        f"{how_many(meter.failures, 'failure')} lost the effect of {number(meter.pls)} of all samples: "
        f"{_budget(meter)}."
    ]
    if meter.budget is not None and meter.is_near:
        text.append(
            f"{percent(meter.used, 1)} of the budget is used: save more often, or recover fully from the next failure."
        )
    dot = {"name": "PLS", "value": meter.pls, "label": f"PLS {number(meter.pls)}"}
    spec = charts.dots([dot], ["PLS"], "portion of lost samples", limit=meter.budget)
    caption = "The line is the budget." if meter.budget is not None else "No budget was set."
    return Section(title="Portion of lost samples", text=text, charts=[Chart(caption=caption, spec=spec)])
