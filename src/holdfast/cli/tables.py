"""Tables that fit the terminal: free text folds, and where that is not enough columns go that --json still has."""

from __future__ import annotations

from collections.abc import Sequence

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
    "AUC",
    "AUC drop",
}
_WHOLE = {"kind", "created", "dtype", "replaced by later checkpoints"}
_READABLE = 16  # columns that free text should have, if it is that long
_ENDLESS = 10_000


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
        left_out = self._left_out(console, options)
        yield self._drawn(left_out)
        if left_out:
            yield Text(f"too narrow for: {', '.join(left_out)}", style="dim")

    def _left_out(self, console: Console, options: ConsoleOptions) -> tuple[str, ...]:
        """As few of the optional columns as it takes for the others to fit."""
        unbounded = options.update(max_width=_ENDLESS)
        for count in range(len(self._optional)):
            left_out = self._optional[:count]
            needed = console.measure(self._drawn(left_out, readable=True), options=unbounded).minimum
            if needed <= options.max_width:
                return left_out
        return self._optional

    def _drawn(self, left_out: Sequence[str], *, readable: bool = False) -> Table:
        kept = [number for number, column in enumerate(self._columns) if column not in left_out]
        drawn = Table(title=self._title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        drawn.padding = (0, 1, 0, 0)
        drawn.show_header = any(self._columns)
        for number in kept:
            self._add_column(drawn, number, readable=readable)
        for cells, style in self._rows:
            drawn.add_row(*(cells[number] for number in kept), style=style)
        return drawn

    def _add_column(self, drawn: Table, number: int, *, readable: bool) -> None:
        column = self._columns[number]
        numbers = column in _NUMBERS
        short = numbers or column in _WHOLE
        longest = max((cell_len(str(cells[number])) for cells, _ in self._rows), default=0)
        drawn.add_column(
            column,
            justify="right" if numbers else "left",
            no_wrap=short,
            overflow="fold",
            min_width=(longest if short else min(longest, _READABLE)) if readable else None,
        )
