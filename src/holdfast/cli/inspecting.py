"""``holdfast ls``, ``show`` and ``diff``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table

from holdfast.cli.common import StepOption, StoreOptions, UrlArgument, opened, output
from holdfast.cli.drawing import as_json, checkpoints, count, label, measured, share, size, table, when
from holdfast.cli.grid import drawn_grid
from holdfast.printable import printable

if TYPE_CHECKING:
    from holdfast.checkpoint.export import TableDifference
    from holdfast.checkpoint.summary import RunSummary
    from holdfast.types import CheckpointInfo

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def ls(url: UrlArgument, json: JsonFlag = False, option: StoreOptions = None) -> None:
    """List the checkpoints of a run, oldest first."""
    listed = opened(url, option).checkpoints()
    if json:
        typer.echo(as_json(listed))
        return
    output().print(_checkpoints(listed))
    kept = sum(info.size_bytes for info in listed)
    full = sum(info.full_bytes for info in listed)
    output().print(f"{checkpoints(len(listed))}, {size(kept)}; all of them full: {size(full)}")


def show(
    url: UrlArgument,
    step: StepOption = None,
    grid: Annotated[bool, typer.Option("--grid", help="Show the grid it stands on instead.")] = False,
    json: JsonFlag = False,
    option: StoreOptions = None,
) -> None:
    """Show a run, and one of its checkpoints in full."""
    if grid:
        picture = opened(url, option).grid(step)
        for drawn in [as_json(picture)] if json else drawn_grid(picture):
            output().print(drawn)
        return
    summary = opened(url, option).summary(step)
    if json:
        typer.echo(as_json(summary))
        return
    for drawn in (_run(summary), _checkpoint(summary), _tables(summary), _parts(summary)):
        output().print(drawn)


def diff(
    url: UrlArgument,
    first: Annotated[int, typer.Argument(metavar="A", help="A checkpoint's step.")],
    second: Annotated[int, typer.Argument(metavar="B", help="Another one's.")],
    option: StoreOptions = None,
) -> None:
    """Compare the tables of two checkpoints, bit for bit."""
    differences = opened(url, option).diff(first, second)
    output().print(_differences(differences, first, second))


def _checkpoints(listed: list[CheckpointInfo]) -> Table:
    drawn = table("step", "term", "kind", "rows", "size", "of full", "created", "tag and metrics")
    for info in listed:
        drawn.add_row(
            str(info.step),
            str(info.term),
            info.kind.value,
            count(info.rows_written),
            size(info.size_bytes),
            share(info.size_bytes, info.full_bytes),
            when(info.created_s),
            " ".join(filter(None, [info.standing, printable(info.tag or ""), measured(info.metrics)])),
            style="dim" if info.abandoned else None,
        )
    return drawn


def _facts(title: str, **facts: str) -> Table:
    drawn = table("", "", title=title)
    drawn.show_header = False
    for name, value in facts.items():
        drawn.add_row(name.replace("_", " "), value)
    return drawn


def _run(summary: RunSummary) -> RenderableType:
    abandoned = f", {summary.abandoned} of them abandoned" if summary.abandoned else ""
    facts = {
        "run": summary.run,
        "term": str(summary.term),
        "last_commit": f"catalog {summary.catalog} ({printable(summary.reason)}) by {printable(summary.writer)}, "
        f"{when(summary.committed_s)}",
        "head": summary.head or "none",
        "checkpoints": f"{summary.checkpoints}{abandoned}, {size(summary.kept_bytes)}",
        "garbage_waiting": ", ".join(dict.fromkeys(item.folder for item in summary.garbage)) or "none",
        "leases": ", ".join(f"{lease.kind} {printable(lease.holder)}" for lease in summary.leases) or "none",
    }
    if summary.priority_saves:
        facts["priority_saves"] = (
            f"{summary.priority_saves} since the newest checkpoint, {size(summary.priority_bytes)}"
        )
    if summary.damaged:
        facts["damaged"] = ", ".join(summary.damaged)
    return _facts(summary.url, **facts)


def _checkpoint(summary: RunSummary) -> RenderableType:
    info = summary.checkpoint
    budget = f" of a budget of {summary.pls_budget:g}" if summary.pls_budget else ""
    lost = {} if summary.pls is None else {"lost_samples": f"{summary.pls:.3g}{budget}"}
    return _facts(
        f"Checkpoint of step {info.step} {info.standing}".rstrip(),
        id=info.id,
        kind=info.kind.value,
        size=f"{size(info.size_bytes)}, {share(info.size_bytes, info.full_bytes)} of a full one",
        stands_on=", ".join(label(base) for base in summary.lineage[:-1]) or "nothing: it is a baseline",
        restore_reads=f"at most {size(summary.restore_bytes)}",
        created=when(info.created_s),
        tag=printable(info.tag or ""),
        metrics=measured(info.metrics),
        **lost,
    )


def _tables(summary: RunSummary) -> RenderableType:
    drawn = table("table", "rows", "dim", "dtype", "slots", "size", "written", "stored", "loss", title="Tables")
    for each in summary.tables:
        weight = each.spec.columns[0]
        drawn.add_row(
            printable(each.spec.name),
            count(each.spec.rows),
            "×".join(map(str, weight.row_shape)),
            weight.dtype,
            ", ".join(f"{slot.name} {slot.dtype}" for slot in each.spec.slots),
            size(each.size_bytes),
            count(each.rows_written),
            each.stored if each.rows_written else "",
            f"{each.loss:.2g}" if each.loss else "",
        )
    return drawn


def _parts(summary: RunSummary) -> RenderableType:
    drawn = table("rank", "bundles", "written", "size", title="Parts")
    for part in summary.parts:
        drawn.add_row(str(part.rank), count(part.bundles), count(part.rows_written), size(part.size_bytes))
    return drawn


def _differences(differences: list[TableDifference], first: int, second: int) -> Table:
    drawn = table("table", "rows", "changed", "share", "largest", "", title=f"From step {first} to step {second}")
    for each in differences:
        lacking = {"first": f"not so in step {second}", "second": f"not in step {first}", None: ""}[each.only_in]
        drawn.add_row(
            printable(each.table),
            count(each.rows),
            count(each.changed_rows),
            share(each.changed_rows, each.rows),
            "-" if math.isnan(each.largest_change) else f"{each.largest_change:.3g}",
            lacking,
        )
    return drawn
