"""How values are printed on a terminal and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.filesize import decimal

from holdfast.cli.common import errors
from holdfast.figures import number
from holdfast.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.types import CheckpointInfo


def size(size_bytes: int) -> str:
    """A size in bytes, kB, MB and so on."""
    return decimal(size_bytes)


def count(number: int) -> str:
    """A number with thousands separators."""
    return f"{number:,}"


def share(part: int, whole: int) -> str:
    """A share in percent."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def when(seconds: float) -> str:
    """A time, in the local time zone."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def measured(metrics: Mapping[str, float]) -> str:
    """Metrics for one table cell."""
    return " ".join(f"{printable(name)}={number(value, 4)}" for name, value in metrics.items())


def checkpoints(number: int) -> str:
    """A number of checkpoints."""
    return "1 checkpoint" if number == 1 else f"{number:,} checkpoints"


def label(info: CheckpointInfo) -> str:
    """A checkpoint in one phrase."""
    return f"step {info.step} ({info.kind.value}, {size(info.size_bytes)})"


def print_json(value: object) -> None:
    """Print the single document of a command with --json."""
    typer.echo(as_json(value))


def as_json(value: object) -> str:
    """A value as JSON text; non-finite numbers become strings."""
    return json.dumps(plain(value), indent=2)


def plain(value: Any) -> Any:
    """A value in terms of what JSON can express."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress_bar(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A byte progress bar on standard error while the block runs; nothing if that is not a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = errors()
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda done: bar.advance(task, done)
