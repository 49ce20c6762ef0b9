"""Who moves a table's rows, and whether that is known before it happens: what a snapshot in slices must know."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.track.table_watch import OnMove, TableWatch
from holdfast.checkpoint.training.keyed_rows import KeyedRows


class Movements:
    """Of all tables, by their numbers."""

    def __init__(self, watches: Sequence[TableWatch]) -> None:
        self._watches = watches

    def are_announced(self, table: int) -> bool:
        """Whether rows move only in steps of an optimizer that is known, as far as anybody has seen.

        Lookups with ``max_norm`` rewrite rows before anybody can look at them, keyed tables tell afterwards, and rows
        that modules update themselves have no version that would show a change which was not told of.
        """
        watch = self._watches[table]
        own = watch.table
        if own.optimizer is None or own.stands_for is not None or isinstance(own, KeyedRows):
            return False
        if any(module.max_norm is not None for module in own.modules):
            return False
        return not (watch.unannounced or watch.is_overtaken)

    def listen(self, table: int, on_move: OnMove | None) -> None:
        """Be told of rows before they move, from now on; None ends it."""
        self._watches[table].on_move = on_move

    def is_overtaken(self, table: int) -> bool:
        """Whether rows may have moved unannounced since the last snapshot began.

        Then they may do so again, and from now on nobody relies on announcements of this table.
        """
        watch = self._watches[table]
        overtaken = watch.is_overtaken
        watch.unannounced |= overtaken
        return overtaken

    def name(self, table: int) -> str:
        """What it is called."""
        return self._watches[table].table.name
