"""Draws a grid in the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from holdfast.cli.drawing import checkpoints, count, share, size
from holdfast.cli.tables import FittedTable

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect.grid_picture import Cohort, GridPicture

_SHADES = " ░▒▓█"
_COLUMNS = 40  # of the picture, at most
_ROWS = 60


def drawn_grid(picture: GridPicture) -> list[RenderableType]:
    """A row for each checkpoint that wrote, a column for each (or for each few) that replaced, the living last."""
    if not picture.cohorts:
        return [Text(f"no checkpoints above the baseline of step {picture.baseline.step} yet")]
    ids = [cohort.checkpoint.id for cohort in picture.cohorts]
    width = math.ceil(len(ids) / _COLUMNS)  # checkpoints in a column
    drawn = FittedTable(
        "step", "size", "alive", "replaced by later checkpoints", "rounds", "bundles", "arranged up to",
        title="Grid", optional=("bundles", "arranged up to", "rounds"),
    )  # fmt: skip
    steps = {cohort.checkpoint.id: str(cohort.checkpoint.step) for cohort in picture.cohorts}
    for number, cohort in enumerate(picture.cohorts):
        if number >= _ROWS:
            break
        drawn.add_row(
            str(cohort.checkpoint.step),
            size(cohort.size_bytes),
            share(cohort.alive_bytes, cohort.size_bytes),
            _cells(cohort, ids, width),
            count(cohort.rounds),
            count(cohort.bundles),
            steps.get(cohort.arranged_by or "", "-"),
        )
    left_out = len(ids) - min(len(ids), _ROWS)
    notes = [
        f"{checkpoints(len(ids))} above the baseline of step {picture.baseline.step}: {size(picture.size_bytes)}, "
        f"{size(picture.alive_bytes)} of it alive; {size(picture.unused_bytes)} in bundles that nothing refers to",
        f"a column is {checkpoints(width)}; the darker, the more of the row's bytes: "
        + ", ".join(f"{shade} up to {25 * level}%" for level, shade in enumerate(_SHADES) if level),
    ]
    if left_out:
        notes.append(f"{checkpoints(left_out)} not drawn; --json lists them all")
    return [drawn, *map(Text, notes)]


def _cells(cohort: Cohort, ids: list[str], width: int) -> Text:
    """How much of a checkpoint's rows each later one replaced; dots before its own column."""
    own = ids.index(cohort.checkpoint.id)
    cells = []
    for start in range(0, len(ids), width):
        replaced = sum(cohort.replaced_bytes.get(by, 0) for by in ids[start : start + width])
        level = math.ceil(4 * replaced / cohort.size_bytes) if cohort.size_bytes else 0
        cells.append("·" if start + width <= own + 1 else _SHADES[level])
    return Text("".join(cells), no_wrap=True)
