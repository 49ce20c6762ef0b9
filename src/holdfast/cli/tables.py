"""Tables that fit the terminal: free text wraps, and if that is not enough, columns are left to --json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

_NUMBERS = {
    "step",
    "term",
    "rank",
    "rows",
    "dim",
    "bundles",
    "written",
    "changed",
    "size",
    "of full",
    "share",
    "largest",
    "alive",
    "rounds",
    "save every",
    "save",
    "load",
    "lost",
    "resched.",
    "parity",
    "overhead",
    "PLS",
    "until at work",
    "steps",
    "samples",
    "AUC",
    "AUC drop",
}
_WHOLE = {"kind", "created", "dtype", "replaced by later checkpoints"}
_READABLE = 16  # columns that free text should have, if it is that long


class FittedTable:
    """Numbers and single words are shown whole, aligned; ``optional`` columns go first to last where it is narrow."""

    def __init__(self, *columns: str, title: str | None = None, optional: Sequence[str] = ()) -> None:
        self._columns = columns
        self._title = title
        self._optional = tuple(optional)
        self._rows: list[tuple[tuple[RenderableType, ...], str | None]] = []

    def add_row(self, *cells: RenderableType, style: str | None = None) -> None:
        """One cell for each column."""
        self._rows.append((cells, style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        left_out = self._left_out(options.max_width)
        yield self._drawn(left_out)
        if left_out:
            yield Text(f"too narrow for: {', '.join(left_out)}", style="dim")

    def _left_out(self, width: int) -> tuple[str, ...]:
        """As few of the optional columns as it takes for the others to fit."""
        needed = {column: self._needed(number) for number, column in enumerate(self._columns)}
        for count in range(len(self._optional)):
            left_out = self._optional[:count]
            if 1 + sum(needed[column] for column in self._columns if column not in left_out) <= width:
                return left_out
        return self._optional

    def _needed(self, number: int) -> int:
        """How wide a column must be, with the space around it: whole, or wide enough to read its text folded."""
        texts = [self._columns[number], *(str(cells[number]) for cells, _ in self._rows)]
        longest = max(map(cell_len, texts))
        if not _is_whole(self._columns[number]):
            word = max(cell_len(word) for text in texts for word in text.split() or [""])
            longest = max(word, min(longest, _READABLE))
        return longest + 2

    def _drawn(self, left_out: Sequence[str]) -> Table:
        kept = [number for number, column in enumerate(self._columns) if column not in left_out]
        drawn = Table(title=self._title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        drawn.padding = (0, 1, 0, 0)
        drawn.show_header = any(self._columns)
        for column in (self._columns[number] for number in kept):
            justify: Literal["left", "right"] = "right" if column in _NUMBERS else "left"
            drawn.add_column(column, justify=justify, no_wrap=_is_whole(column), overflow="fold")
        for cells, style in self._rows:
            drawn.add_row(*(cells[number] for number in kept), style=style)
        return drawn


def _is_whole(column: str) -> bool:
    """Whether its cells are never folded."""
    return column in _NUMBERS or column in _WHOLE
