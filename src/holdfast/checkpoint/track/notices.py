"""Warnings about tables that must be saved whole, and about parameters that could be tables."""

from __future__ import annotations

import sys
import warnings

from holdfast.errors import HoldfastWarning

_NAMED = 3


class Notices:
    """Each table and reason is warned about once; tables that share a reason share a warning."""

    def __init__(self) -> None:
        self._given: set[tuple[str, str]] = set()
        self._new: dict[str, list[str]] = {}
        self._hints: dict[str, bool] = {}  # parameters, and whether they were warned about

    def add(self, table: str, reason: str) -> None:
        """Remember a reason for which a table is saved whole."""
        if (table, reason) not in self._given:
            self._given.add((table, reason))
            self._new.setdefault(reason, []).append(table)

    def hint(self, parameter: str) -> None:
        """Remember a parameter that gets sparse gradients and is no table."""
        self._hints.setdefault(parameter, False)

    def publish(self) -> None:
        """Issue the new warnings."""
        if not all(self._hints.values()):
            self._publish_hints()
        if not self._new:
            return
        new, self._new = self._new, {}
        for reason, tables in new.items():
            warnings.warn(f"{_list(tables)} saved whole: {reason}", HoldfastWarning, stacklevel=users_level())

    def _publish_hints(self) -> None:
        new = [name for name, told in self._hints.items() if not told]
        self._hints = dict.fromkeys(self._hints, True)
        named = ", ".join(map(repr, new[:_NAMED])) + (f" and {len(new) - _NAMED} more" if len(new) > _NAMED else "")
        warnings.warn(
            f"{named} receives sparse gradients but is in no nn.Embedding, so every checkpoint saves it in full; pass "
            f"tables={{{new[0]!r}: the parameter, ...}} to get deltas",
            HoldfastWarning,
            stacklevel=users_level(),
        )


def users_level() -> int:
    """How far up the stack, seen from the caller, the user's own code is: a warning is about a line they can change."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("holdfast", "torch"):
        level, frame = level + 1, frame.f_back
    return level


def _list(tables: list[str]) -> str:
    if len(tables) == 1:
        return f"table {tables[0]!r} is"
    named = ", ".join(map(repr, tables[:_NAMED]))
    return f"tables {named} are" if len(tables) <= _NAMED else f"tables {named} and {len(tables) - _NAMED} more are"
