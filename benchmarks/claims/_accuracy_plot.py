"""The AUC lost on the way through the training, a panel per bit-width (Check-N-Run, figure 10)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.claims._accuracy_settings import SETTINGS
from benchmarks.claims._accuracy_statistics import TOLERATED, Drops
from benchmarks.claims._accuracy_trainer import Job

_NAMES = {
    "published": "the paper's codec",
    "default": "default codec",
    "difference": "difference",
    "control": "control",
}


def plot(found: Mapping[str, Drops], job: Job, path: Path) -> None:
    """Write the picture."""
    import altair as alt

    base = alt.Chart({"values": _points(found, job)})
    lines = base.mark_line(point=True).encode(
        x=alt.X("samples:Q", title="training samples"),
        y=alt.Y("drop:Q", title="mean drop of the AUC, %"),
        color=alt.Color("line:N", title=None, scale=alt.Scale(scheme="category20")),
    )
    tolerated = base.mark_rule(strokeDash=[4, 4]).encode(y=alt.datum(100 * TOLERATED))
    panels = alt.layer(lines, tolerated).properties(width=260, height=200)
    panels.facet(alt.Facet("panel:N", title=None), columns=2).save(str(path))


def _points(found: Mapping[str, Drops], job: Job) -> list[dict[str, object]]:
    values: list[dict[str, object]] = []
    for name, drops in found.items():
        setting, kind = SETTINGS[name], name.partition("_")[0]
        panel = "one unit in the last place" if setting.precision is None else f"{setting.precision.bits} bits"
        line = f"{_NAMES[kind]}, {setting.restores} restore" + ("s" if setting.restores > 1 else "")
        for mark, drop in zip((0, *job.marks), (0.0, *drops.points), strict=True):
            values.append({"panel": panel, "line": line, "samples": mark * job.batch_size, "drop": 100 * drop})
    return values
