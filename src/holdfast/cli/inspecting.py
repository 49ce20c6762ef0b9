"""``holdfast ls``, ``show`` and ``diff``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from holdfast.cli.bases import BaseUse, base_uses
from holdfast.cli.common import JsonFlag, StepOption, StoreOptions, UrlArgument, newest, opened, output
from holdfast.cli.drawing import checkpoints, count, label, measured, plain, print_json, share, size, when
from holdfast.cli.grid import drawn_grid
from holdfast.cli.jobs import drawn_job, plain_jobs
from holdfast.cli.tables import FittedTable
from holdfast.figures import number
from holdfast.printable import printable

if TYPE_CHECKING:
    from holdfast.checkpoint.commit.chain import Head
    from holdfast.checkpoint.inspect.summary import RunSummary
    from holdfast.checkpoint.transfer.export import TableDifference
    from holdfast.types import CheckpointInfo


def ls(url: UrlArgument, json: JsonFlag = False, option: StoreOptions = None) -> None:
    """List the checkpoints of a run, oldest first."""
    head = newest(url, option)
    listed = [entry.info for entry in head.entries]
    uses = base_uses(listed)
    if json:
        print_json([_listed(info, uses.get(info.id)) for info in listed])
        return
    output().print(_checkpoints(listed, uses))
    output().print(_totals(listed, head))
    if any(use.is_likely_sole_reason for use in uses.values()):
        output().print(
            "likely only base: it has no tag and the next checkpoint was dropped, so it is probably kept only "
            "because others depend on it (a run does not record its retention policy)"
        )


def show(
    url: UrlArgument,
    step: StepOption = None,
    grid: Annotated[bool, typer.Option("--grid", help="Show its grid instead.")] = False,
    json: JsonFlag = False,
    option: StoreOptions = None,
) -> None:
    """Show a run, and one of its checkpoints in full."""
    if grid:
        picture = opened(url, option).grid(step)
        if json:
            print_json(picture)
            return
        for drawn in drawn_grid(picture):
            output().print(drawn)
        return
    run = opened(url, option)
    summary, jobs = run.summary(step), run.jobs()
    if json:
        print_json({**plain(summary), "jobs": plain_jobs(jobs)})
        return
    for part in (_run(summary), _checkpoint(summary), _tables(summary), _parts(summary), drawn_job(jobs)):
        if part is not None:
            output().print(part)


def diff(
    url: UrlArgument,
    first: Annotated[int, typer.Argument(metavar="A", help="Step of a checkpoint.")],
    second: Annotated[int, typer.Argument(metavar="B", help="Another one's.")],
    json: JsonFlag = False,
    option: StoreOptions = None,
) -> None:
    """Compare the tables of two checkpoints, bit for bit."""
    differences = opened(url, option).diff(first, second)
    if json:
        print_json(differences)
    else:
        output().print(_differences(differences, first, second))


def _listed(info: CheckpointInfo, use: BaseUse | None) -> dict[str, object]:
    """A checkpoint as JSON, with how many depend on it."""
    only = use is not None and use.is_likely_sole_reason
    return {**plain(info), "base_of": use.needed_by if use else 0, "only_base": only}


def _checkpoints(listed: list[CheckpointInfo], uses: Mapping[str, BaseUse]) -> FittedTable:
    drawn = FittedTable(
        "step", "term", "kind", "rows", "size", "of full", "created", "tag and metrics",
        optional=("of full", "term", "rows", "created"),
    )  # fmt: skip
    for info in listed:
        drawn.add_row(
            str(info.step),
            str(info.term),
            info.kind.value,
            count(info.rows_written),
            size(info.size_bytes),
            share(info.size_bytes, info.full_bytes),
            when(info.created_s),
            _remarks(info, uses.get(info.id)),
            style="dim" if info.abandoned else None,
        )
    return drawn


def _remarks(info: CheckpointInfo, use: BaseUse | None) -> str:
    base = f"({'likely only base' if use.is_likely_sole_reason else 'base'} of {use.needed_by})" if use else ""
    return " ".join(filter(None, [info.standing, base, printable(info.tag or ""), measured(info.metrics)]))


def _totals(listed: list[CheckpointInfo], head: Head) -> str:
    kept = sum(info.size_bytes for info in listed)
    full = sum(info.full_bytes for info in listed)
    dropped = len({item.folder for item in head.garbage})
    garbage = f"; garbage in {dropped:,} folder{'s' if dropped > 1 else ''}" if dropped else ""
    return f"{checkpoints(len(listed))}, {size(kept)}; as full checkpoints: {size(full)}{garbage}"


def _facts(title: str, **facts: str) -> FittedTable:
    drawn = FittedTable("", "", title=title)
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
        "garbage": f"{count(summary.garbage_objects)} objects, {size(summary.garbage_bytes)}, waiting for deletion"
        if summary.garbage
        else "none",
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
    budget = f" of a budget of {number(summary.pls_budget)}" if summary.pls_budget else ""
    lost = {} if summary.pls is None else {"lost_samples": f"{number(summary.pls)}{budget}"}
    return _facts(
        f"Checkpoint of step {info.step} {info.standing}".rstrip(),
        id=info.id,
        kind=info.kind.value,
        size=f"{size(info.size_bytes)}, {share(info.size_bytes, info.full_bytes)} of a full one",
        depends_on=", ".join(label(base) for base in summary.lineage[:-1]) or "nothing: it is a baseline",
        restore_reads=f"at most {size(summary.restore_bytes)}",
        created=when(info.created_s),
        tag=printable(info.tag or ""),
        metrics=measured(info.metrics),
        **lost,
    )


def _tables(summary: RunSummary) -> RenderableType:
    drawn = FittedTable(
        "table", "rows", "dim", "dtype", "slots", "size", "written", "stored", "loss",
        title="Tables", optional=("slots", "dtype", "loss", "dim", "written"),
    )  # fmt: skip
    for each in summary.tables:
        weight = each.spec.weight
        drawn.add_row(
            printable(each.spec.name),
            count(each.spec.rows),
            "×".join(map(str, weight.row_shape)),
            weight.dtype,
            ", ".join(f"{slot.name} {slot.dtype}" for slot in each.spec.slots),
            size(each.size_bytes),
            count(each.rows_written),
            each.stored if each.rows_written else "",
            number(each.loss, 2) if each.loss else "",
        )
    return drawn


def _parts(summary: RunSummary) -> RenderableType:
    drawn = FittedTable("rank", "bundles", "written", "size", title="Parts")
    for part in summary.parts:
        drawn.add_row(str(part.rank), count(part.bundles), count(part.rows_written), size(part.size_bytes))
    return drawn


def _differences(differences: list[TableDifference], first: int, second: int) -> FittedTable:
    title = f"From step {first} to step {second}"
    drawn = FittedTable("table", "rows", "changed", "share", "largest", "", title=title, optional=("share",))
    for each in differences:
        lacking = {"first": f"not so in step {second}", "second": f"not in step {first}", None: ""}[each.only_in]
        drawn.add_row(
            printable(each.table),
            count(each.rows),
            count(each.changed_rows),
            share(each.changed_rows, each.rows),
            "-" if math.isnan(each.largest_change) else number(each.largest_change),
            lacking,
        )
    return drawn
