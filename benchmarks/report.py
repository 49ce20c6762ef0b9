"""What a benchmark found: tables for people, flat figures for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

Figure: TypeAlias = float | int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a caption, one cell per header."""

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Figure]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one claim's ``run``."""

    title: str
    tables: Sequence[Table] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)


def machine() -> dict[str, Figure]:
    """What figures depend on beside the code."""
    return {
        "machine_cores": os.cpu_count() or 1,
        "machine_torch_threads": torch.get_num_threads(),
        "machine_torch_version": torch.__version__,
        "machine_python_version": platform.python_version(),
    }


def show(report: Report, console: Console | None) -> None:
    """Print the tables, then the figures; without a console, as a GPU machine may lack rich, in plain lines."""
    figures = Table(caption="figures", headers=("figure", "value"), rows=list(report.figures.items()))
    tables = (*report.tables, figures)
    if console is None:
        print(report.title, *(_plain(table) for table in tables), sep="\n\n")
        return
    console.rule(report.title)
    for table in tables:
        console.print(_rich(table))


def _plain(table: Table) -> str:
    lines = (table.headers, *([_shown(value) for value in row] for row in table.rows))
    return "\n".join([table.caption, *("  ".join(line) for line in lines)])


def _rich(table: Table) -> RichTable:
    from rich.table import Table as RichTable

    shown = RichTable(*table.headers, title=table.caption)
    for row in table.rows:
        shown.add_row(*(_cell(value) for value in row))
    return shown


def _cell(value: Figure) -> Text:  # not a string, whose brackets rich would take for markup
    from rich.text import Text

    return Text(_shown(value))


def _shown(value: Figure) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_json(report: Report, path: Path, extra: Mapping[str, Figure]) -> None:
    """One flat object: the report's figures, then ``extra``."""
    path.write_text(json.dumps({**report.figures, **extra}, indent=2) + "\n", encoding="utf-8")
