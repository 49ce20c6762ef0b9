"""``holdfast report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.common import JsonFlag, StoreOptions, opened, output
from holdfast.cli.drawing import print_json, size


def report(
    to: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.", show_default=False)],
    url: Annotated[str | None, typer.Argument(metavar="[URL]", help="Location of the run.", show_default=False)] = None,
    emulation: Annotated[
        Path | None, typer.Option("--emulation", metavar="FILE", help="Report on an emulation's result instead.")
    ] = None,
    json: JsonFlag = False,
    option: StoreOptions = None,
) -> None:
    """Write one HTML page about a run: checkpoints, grid, recoveries, overhead. It needs no network to be read."""
    if (url is None) == (emulation is None):
        raise typer.BadParameter("pass the URL of a run, or --emulation FILE")
    text = _of_run(url, option) if url is not None else _of_emulation(emulation)
    to.write_text(text, encoding="utf-8")
    size_bytes = to.stat().st_size
    if json:
        print_json({"file": to, "size_bytes": size_bytes})
    else:
        output().print(f"wrote the report to {to}, {size(size_bytes)}", soft_wrap=True)


def _of_run(url: str, option: list[str] | None) -> str:
    from holdfast.report import run_report

    return run_report(opened(url, option))


def _of_emulation(file: Path | None) -> str:
    from holdfast.planner.emulated import EmulatedJob
    from holdfast.report import emulation_report

    assert file is not None
    return emulation_report(EmulatedJob.from_json(file.read_text(encoding="utf-8")))
