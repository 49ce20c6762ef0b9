"""The page's section on a cluster's jobs: how fast they trained, and what each death cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.cluster.deaths import Death
from holdfast.cluster.happenings import Committed, Died, Event, LostSamples, Replaced, Resized, WentBack
from holdfast.cluster.record import JobRecord, Speed
from holdfast.figures import NOTHING, number
from holdfast.report import charts
from holdfast.report.page import Chart, PageTable, Section
from holdfast.report.thinning import thinned
from holdfast.report.words import count, duration, how_many, in_units, plain_unit, when

_COLUMNS = ("when", "who", "how", "rung", "until at work", "by", "steps lost", "samples", "PLS", "PLS since the start")
_DRAWN = 4  # jobs, the newest
_MARKS = {
    Died: "death",
    Replaced: "at work again",
    WentBack: "went back",
    Resized: "resized",
    Committed: "checkpoint",
}


def jobs_section(jobs: Sequence[JobRecord]) -> Section | None:
    """None where no cluster trained here."""
    if not jobs:
        return None
    deaths = [death for job in jobs for death in job.deaths]
    newest = jobs[-1]
    text = [
        f"{how_many(len(jobs), 'job')} of a cluster trained here, the last one with "
        f"{how_many(newest.servers, 'server')} and {how_many(newest.workers, 'worker')}"
        f"{', which took each step together' if newest.synchronous else ''}. {_told(deaths, _lost_steps(jobs))}"
    ]
    if newest.ladder is not None:
        text.append(f"The last one made up for deaths of servers by {newest.ladder}{_rungs(deaths)}.")
    table = PageTable(
        caption="Deaths, newest first",
        columns=_COLUMNS,
        rows=[_row(death) for death in reversed(deaths)],
        words=("who", "how", "rung", "by"),
    )
    return Section(
        title="Jobs of a cluster",
        text=text,
        charts=[_chart(job) for job in reversed(jobs[-_DRAWN:]) if job.speeds],
        tables=[table] if deaths else [],
    )


def _lost_steps(jobs: Sequence[JobRecord]) -> int:
    """Several deaths may send everyone back once."""
    events = [event for job in jobs for event in job.events]
    lost = sum(event.steps for event in events if isinstance(event, LostSamples))
    return lost + sum(event.lost_steps for event in events if isinstance(event, WentBack))


def _told(deaths: Sequence[Death], lost: int) -> str:
    if not deaths:
        return "Nobody died."
    waited = [death.replaced_s for death in deaths if death.replaced_s is not None]
    return (
        f"{how_many(len(deaths), 'death')} cost {how_many(lost, 'step')}: of one server's rows, or of everything where "
        f"everyone went back. At the longest it took {duration(max(waited, default=None))} until everyone was at work "
        "again."
    )


def _row(death: Death) -> list[str]:
    lost = f"{count(death.lost_steps)}, everyone's" if death.went_back else count(death.lost_steps)
    return [
        when(death.at_s),
        str(death.member),
        death.how.splitlines()[-1] if death.how else NOTHING,
        death.rung or NOTHING,
        duration(death.replaced_s),
        NOTHING if death.replaced_s is None else "a spare" if death.by_spare else "a new process",
        lost,
        number(death.lost_samples),
        number(death.lost_pls),
        number(death.pls),
    ]


def _rungs(deaths: Sequence[Death]) -> str:
    """How often each was taken, over all jobs."""
    taken = Counter(death.rung for death in deaths if death.rung is not None)
    told = ", ".join(f"{rung} {how_many(often, 'time')}" for rung, often in taken.items())
    return f"; over all jobs it took {told}" if told else ""


def _chart(job: JobRecord) -> Chart:
    drawn = thinned(job.speeds, lambda speed: speed.samples_per_s)
    unit = plain_unit(speed.samples_per_s for speed in drawn)
    rows = [
        {"at_ms": 1000 * speed.at_s, "value": speed.samples_per_s / unit.factor, "label": _label(speed)}
        for speed in drawn
    ]
    caption = f"Samples per second in the job of term {job.term}, with deaths, recoveries and checkpoints."
    spec = charts.speeds_over_time(rows, list(_marks(job.events)), in_units("samples per second", unit))
    return Chart(caption=caption, spec=spec)


def _label(speed: Speed) -> str:
    return f"{when(speed.at_s)}, step {count(speed.step)}: {number(speed.samples_per_s)} samples per second"


def _marks(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    for event in events:
        if (what := _MARKS.get(type(event))) is not None:
            label = f"{when(event.at_s)}: {what}{_more(event)}"
            yield {"at_ms": 1000 * event.at_s, "what": what, "label": label}


def _more(event: Event) -> str:
    match event:
        case Died(member=member) | Replaced(member=member):
            return f", {member}"
        case Resized(workers=workers, before=before):
            return f" from {how_many(before, 'worker')} to {workers}"
    return ""
