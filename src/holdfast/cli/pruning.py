"""``holdfast prune``."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from holdfast.cli.common import JsonFlag, StoreOptions, UrlArgument, opened, output
from holdfast.cli.drawing import count, print_json, size
from holdfast.cli.tables import FittedTable
from holdfast.figures import number
from holdfast.types import Doubt

if TYPE_CHECKING:
    from holdfast.checkpoint.commit.collect import Collected
    from holdfast.checkpoint.inspect.prune_preview import Verdict
    from holdfast.policy import KeepBest, Retention
    from holdfast.types import CheckpointInfo


def prune(
    url: UrlArgument,
    keep_last: Annotated[int | None, typer.Option(metavar="N", help="Keep the N newest.")] = None,
    keep_every: Annotated[int | None, typer.Option(metavar="N", help="Keep one every N steps.")] = None,
    keep_best: Annotated[
        str | None, typer.Option(metavar="METRIC[:min]", help="Keep the one with the highest (or lowest) metric.")
    ] = None,
    keep_tagged: Annotated[bool, typer.Option("--keep-tagged", help="Keep those saved under a name.")] = False,
    ttl_days: Annotated[
        float | None, typer.Option(metavar="D", help="Keep none longer than D days (on its own: all until then).")
    ] = None,
    grace_minutes: Annotated[
        float, typer.Option(metavar="M", help="Time that objects of dropped checkpoints stay in the store.")
    ] = 10.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be dropped.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    json: JsonFlag = False,
    option: StoreOptions = None,
) -> None:
    """Drop the checkpoints that no rule keeps; the newest always stays, and so does what a kept one depends on."""
    retention = _retention(keep_last, keep_every, keep_best, keep_tagged, ttl_days)
    if json and not (yes or dry_run):
        raise typer.BadParameter("--json cannot ask for confirmation: add --yes or --dry-run")
    run = opened(url, option)
    verdicts = run.plan_prune(retention)
    if json:
        print_json(_as_json(verdicts, None if dry_run else run.prune(retention, grace_s=60 * grace_minutes)))
        return
    output().print(_verdicts(verdicts))
    goes = [verdict.checkpoint for verdict in verdicts if not verdict.stays]
    output().print(f"{len(goes)} of {len(verdicts)} checkpoints to drop: {size(sum(info.size_bytes for info in goes))}")
    if dry_run:
        return
    if goes and not yes:
        typer.confirm("Drop them?", abort=True)
    dropped, collected = run.prune(retention, grace_s=60 * grace_minutes)
    output().print(
        f"dropped {len(dropped)}; deleted {count(collected.objects)} objects, {size(collected.size_bytes)}. Objects "
        f"of dropped checkpoints are deleted after {number(grace_minutes, 6)} minutes, by the next save or prune",
        soft_wrap=True,
    )


def _retention(
    last: int | None, every: int | None, best: str | None, tagged: bool, ttl_days: float | None
) -> Retention:
    from holdfast.policy import KeepEvery, KeepLast, KeepTagged, TimeToLive

    chosen: list[Retention] = []
    chosen += [KeepLast(last)] if last is not None else []
    chosen += [KeepEvery(every)] if every is not None else []
    chosen += [_best(best)] if best is not None else []
    chosen += [KeepTagged()] if tagged else []
    limit = [TimeToLive(ttl_days)] if ttl_days is not None else []
    if not chosen and not limit:
        raise typer.BadParameter("pass what to keep: --keep-last, --keep-every, --keep-best, --keep-tagged, --ttl-days")
    if not chosen:
        return limit[0]
    kept = reduce(or_, chosen)
    return kept & limit[0] if limit else kept


def _best(text: str) -> KeepBest:
    from holdfast.policy import KeepBest

    metric, _, mode = text.partition(":")
    return KeepBest(metric, mode=cast(Literal["max", "min"], mode or "max"))  # which checks both


def _as_json(verdicts: list[Verdict], done: tuple[list[CheckpointInfo], Collected] | None) -> dict[str, object]:
    return {
        "verdicts": verdicts,
        "dropped": None if done is None else [info.id for info in done[0]],  # None: nothing was changed
        "deleted": None if done is None else done[1],
    }


def _verdicts(verdicts: list[Verdict]) -> FittedTable:
    drawn = FittedTable("step", "term", "kind", "size", "verdict", optional=("term",))
    for verdict in verdicts:
        info = verdict.checkpoint
        reason = f"kept: step {verdict.needed_by.step} depends on it" if verdict.needed_by else "kept"
        if info.doubt is Doubt.SUSPECT:
            reason = "kept: suspect until `holdfast verify` has checked it"
        drawn.add_row(
            str(info.step),
            str(info.term),
            info.kind.value,
            size(info.size_bytes),
            reason if verdict.stays else "dropped",
            style=None if verdict.stays else "red",
        )
    return drawn
