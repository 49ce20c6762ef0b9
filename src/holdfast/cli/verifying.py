"""``holdfast verify``."""

from __future__ import annotations

import typer

from holdfast.cli.common import FAILED, StoreOptions, UrlArgument, opened, output
from holdfast.cli.drawing import checkpoints, progress_bar, size, table


def verify(url: UrlArgument, option: StoreOptions = None) -> None:
    """Read every byte of a run and compare it with its checksum; ends with 1 if anything is damaged."""
    run = opened(url, option)
    kept = run.checkpoints()
    total_bytes = sum(info.size_bytes for info in kept)
    with progress_bar("verifying", total_bytes) as progress:
        problems = run.verify(progress=progress)
    if not problems:
        output().print(f"{checkpoints(len(kept))}, {size(total_bytes)}: every byte is as it was written")
        return
    drawn = table("checkpoint", "object", "problem")
    for problem in problems:
        drawn.add_row(problem.checkpoint or "-", problem.object_name, problem.what)
    output().print(drawn)
    raise typer.Exit(FAILED)
