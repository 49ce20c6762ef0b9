"""``holdfast export`` and ``import``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.common import JsonFlag, StepOption, StoreOptions, UrlArgument, opened, output, parsed
from holdfast.cli.drawing import label, print_json, progress_bar, size
from holdfast.cli.tables import FittedTable

if TYPE_CHECKING:
    from holdfast.checkpoint.transfer.foreign_import import ImportReport


class Format(Enum):
    """What an export can be, other than a file."""

    DCP = "dcp"


def export(
    url: UrlArgument,
    file: Annotated[
        Path,
        typer.Argument(
            help="A .safetensors file, or .pt for torch.save; with --format dcp a folder.", show_default=False
        ),
    ],
    step: StepOption = None,
    slots: Annotated[bool, typer.Option("--slots", help="Include the optimizer state of each row.")] = False,
    form: Annotated[
        Format | None, typer.Option("--format", help="dcp: everything, as a torch.distributed.checkpoint folder.")
    ] = None,
    json: JsonFlag = False,
    option: StoreOptions = None,
) -> None:
    """Write a checkpoint's weights as one file, under their state_dict names, or all of it as a DCP folder."""
    run = opened(url, option)
    with progress_bar("exporting", run.summary(step).restore_bytes) as progress:
        info = run.export(file, step, slots=slots, format="dcp" if form else None, progress=progress)
    size_bytes = _size_bytes(file)
    if json:
        print_json({"checkpoint": info, "file": file, "size_bytes": size_bytes})
    else:
        output().print(f"wrote {label(info)} to {file}, {size(size_bytes)}", soft_wrap=True)


def import_(
    url: UrlArgument,
    source: Annotated[Path, typer.Argument(help="A torch.save or .safetensors file, or a DCP or safetensors folder.")],
    table_pattern: Annotated[
        list[str], typer.Option("--table", metavar="GLOB", help="Names of embedding tables; may be repeated.")
    ] = ["*emb*"],  # noqa: B006 - how typer is told a default
    step: Annotated[int, typer.Option("--step", help="Step that training continues from.")] = 0,
    prefix: Annotated[str, typer.Option("--prefix", help="Import only names with this prefix, and strip it.")] = "",
    json: JsonFlag = False,
    option: StoreOptions = None,
) -> None:
    """Make the weights of another checkpoint the first baseline of an empty run."""
    from holdfast.run import import_checkpoint

    with progress_bar("importing", _size_bytes(source)) as progress:
        report = import_checkpoint(
            url, source, tables=table_pattern, step=step, prefix=prefix, options=parsed(option), progress=progress
        )
    if json:
        print_json({"checkpoint": report.info, **_names(report)})
    else:
        _print(report, url)


def _names(report: ImportReport) -> dict[str, object]:
    return {"tables": report.tables, "dense": report.dense, "skipped": report.skipped}


def _print(report: ImportReport, url: str) -> None:
    output().print(f"tables: {', '.join(report.tables) or 'none'}", soft_wrap=True)
    output().print(f"dense: {', '.join(report.dense) or 'none'}", soft_wrap=True)
    if report.skipped:
        drawn = FittedTable("left out", "because it")
        for name, reason in report.skipped.items():
            drawn.add_row(name, reason)
        output().print(drawn)
    output().print(f"imported {label(report.info)} into {url}: a Checkpointer resumes from it", soft_wrap=True)


def _size_bytes(source: Path) -> int:
    files = source.rglob("*") if source.is_dir() else [source]
    return sum(file.stat().st_size for file in files if file.is_file())
