"""``holdfast verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from holdfast.cli.common import FAILED, JsonFlag, StoreOptions, UrlArgument, opened, output
from holdfast.cli.drawing import checkpoints, print_json, progress_bar, size
from holdfast.cli.tables import FittedTable
from holdfast.types import CheckpointInfo, Doubt

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect.verify import Problem


def verify(url: UrlArgument, json: JsonFlag = False, option: StoreOptions = None) -> None:
    """Read every byte of a run and compare it with its checksum; ends with 1 if anything is damaged."""
    run = opened(url, option)
    kept = run.checkpoints()
    total_bytes = sum(info.size_bytes for info in kept)
    with progress_bar("verifying", total_bytes) as progress:
        problems = run.verify(progress=progress)
    judged = _judged(kept, run.checkpoints())
    if json:
        settled = [{"step": before.step, "id": before.id, "became": _became(after)} for before, after in judged]
        print_json({"checkpoints": len(kept), "size_bytes": total_bytes, "problems": problems, "suspects": settled})
    else:
        for before, after in judged:
            output().print(_verdict(before, after), soft_wrap=True)
        output().print(_problems(problems) if problems else _sound(len(kept), total_bytes))
    if problems:
        raise typer.Exit(FAILED)


def _sound(kept: int, size_bytes: int) -> str:
    return f"{checkpoints(kept)}, {size(size_bytes)}: all bytes intact"


def _problems(problems: list[Problem]) -> FittedTable:
    drawn = FittedTable("checkpoint", "object", "problem", optional=("checkpoint",))  # its objects' names begin with it
    for problem in problems:
        drawn.add_row(problem.checkpoint or "-", problem.object_name, problem.what)
    return drawn


def _judged(
    before: list[CheckpointInfo], after: list[CheckpointInfo]
) -> list[tuple[CheckpointInfo, CheckpointInfo | None]]:
    """What was suspect, and the same after the verification; None where it is gone."""
    now = {info.id: info for info in after}
    return [(info, now.get(info.id)) for info in before if info.doubt is Doubt.SUSPECT]


def _became(after: CheckpointInfo | None) -> str:
    if after is None:
        return "gone"
    return after.doubt.value if after.doubt else "cleared"


def _verdict(before: CheckpointInfo, after: CheckpointInfo | None) -> str:
    """What became of a suspect checkpoint."""
    if after is None:
        return f"step {before.step} was suspect and is now gone"
    if after.doubt is Doubt.SUSPECT:
        return f"step {before.step} stays suspect: what it depends on could not be checked"
    if after.doubt is Doubt.CONDEMNED:
        return f"step {before.step} was suspect and is damaged: it is condemned and no longer kept for verification"
    return f"step {before.step} was suspect and is intact: it is cleared and no longer kept for verification"
