"""``holdfast verify``."""

from __future__ import annotations

import typer

from holdfast.cli.common import FAILED, StoreOptions, UrlArgument, opened, output
from holdfast.cli.drawing import checkpoints, progress_bar, size, table
from holdfast.types import CheckpointInfo, Doubt


def verify(url: UrlArgument, option: StoreOptions = None) -> None:
    """Read every byte of a run and compare it with its checksum; ends with 1 if anything is damaged."""
    run = opened(url, option)
    kept = run.checkpoints()
    total_bytes = sum(info.size_bytes for info in kept)
    with progress_bar("verifying", total_bytes) as progress:
        problems = run.verify(progress=progress)
    for info in kept:
        if info.doubt is Doubt.SUSPECT:
            output().print(_verdict(info, {each.id: each for each in run.checkpoints()}.get(info.id)), soft_wrap=True)
    if not problems:
        output().print(f"{checkpoints(len(kept))}, {size(total_bytes)}: every byte is as it was written")
        return
    drawn = table("checkpoint", "object", "problem")
    for problem in problems:
        drawn.add_row(problem.checkpoint or "-", problem.object_name, problem.what)
    output().print(drawn)
    raise typer.Exit(FAILED)


def _verdict(before: CheckpointInfo, after: CheckpointInfo | None) -> str:
    """What became of a suspect checkpoint."""
    if after is None:
        return f"step {before.step} was suspect and is gone now"
    if after.doubt is Doubt.SUSPECT:
        return f"step {before.step} stays suspect: what it stands on could not be judged"
    if after.doubt is Doubt.CONDEMNED:
        return f"step {before.step} was suspect and is damaged: it is condemned, and kept no longer than others"
    return f"step {before.step} was suspect and is as it was written: it is cleared, and kept no longer than others"
