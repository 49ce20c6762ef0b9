"""What deaths cost a job, drawn in a terminal: its speed over time with a mark for each, and a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast.cluster.deaths import Death
from holdfast.cluster.happenings import Committed, Died, Replaced, Started
from holdfast.cluster.record import JobRecord

_HEIGHT = 8  # lines
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_MARKS = {Committed: ("·", "blue"), Replaced: ("▲", "green"), Died: ("▼", "red")}  # a later one covers an earlier one


def drawn(job: JobRecord, *, width: int) -> Group:
    """Samples per second from the first step on, one column for each moment."""
    speeds = [speed for speed in job.speeds if speed.at_s >= _began_s(job)]
    if not speeds:
        return Group(Text("no speed was recorded"))
    first_s, last_s = speeds[0].at_s, max(speeds[-1].at_s, speeds[0].at_s + 1.0)
    columns = min(width, 2 * len(speeds))
    moments = [first_s + (last_s - first_s) * (each + 0.5) / columns for each in range(columns)]
    heights = [next((speed.samples_per_s for speed in speeds if speed.at_s >= at_s), 0.0) for at_s in moments]
    most = max(heights) or 1.0
    lines = [Text("samples/s", style="dim")]
    for line in reversed(range(_HEIGHT)):
        label = f"{most * (line + 1) / _HEIGHT:9,.0f} " if line % 2 else " " * 10
        lines.append(Text(label, style="dim") + Text("".join(_cell(each / most, line) for each in heights)))
    marks = _marks(job, first_s, last_s, columns)
    seconds = f"{last_s - first_s:.0f} s"
    lines.append(Text(" " * 10) + marks)
    lines.append(Text(f"{'':10}0 s{seconds:>{max(0, columns - 3)}}", style="dim"))
    lines.append(Text(f"{'':10}▼ a death   ▲ everyone is at work again   · a checkpoint", style="dim"))
    return Group(*lines)


def costs(deaths: Sequence[Death]) -> Table:
    """What each death cost."""
    table = Table(title="What each death cost")
    for name in ("who", "rung", "until at work", "by", "steps lost", "of", "PLS"):
        table.add_column(name, justify="left" if name in ("who", "rung", "of", "by") else "right", no_wrap=True)
    for death in deaths:
        table.add_row(
            str(death.member),
            death.rung or "",
            "-" if death.replaced_s is None else f"{death.replaced_s:.1f} s",
            "-" if death.replaced_s is None else "a spare" if death.by_spare else "a new process",
            str(death.lost_steps),
            "everyone" if death.went_back else "its rows" if death.lost_steps else "",
            "" if death.lost_pls is None else f"{death.lost_pls:.4f}",
        )
    return table


def _began_s(job: JobRecord) -> float:
    return next((event.at_s for event in job.events if isinstance(event, Started)), 0.0)


def _cell(share: float, line: int) -> str:
    eighths = round(share * _HEIGHT * 8) - 8 * line
    return _EIGHTHS[max(0, min(8, eighths))]


def _marks(job: JobRecord, first_s: float, last_s: float, columns: int) -> Text:
    cells = [(" ", "")] * columns
    for kind, mark in _MARKS.items():
        for event in job.events:
            if isinstance(event, kind) and first_s <= event.at_s <= last_s:
                place = int((event.at_s - first_s) / (last_s - first_s) * columns)
                cells[min(place, columns - 1)] = mark
    return Text.assemble(*cells)
