"""What a run lists: its checkpoints, oldest first, and the objects awaiting deletion.

An inventory is the previous one plus a delta. A commit that only adds checkpoints never loops over all of them in
Python: the cost of a commit must not grow with the length of the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from holdfast.format.catalog import Entry, Garbage
from holdfast.format.history import Delta

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All checkpoints and all garbage, as of one commit."""

    by_id: Mapping[str, Entry] = field(default_factory=dict)  # oldest first
    garbage: tuple[Garbage, ...] = ()
    condemned: frozenset[str] = frozenset()  # folders in ``garbage`` as a whole

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The checkpoints, oldest first."""
        return tuple(self.by_id.values())

    def after(self, delta: Delta) -> Inventory:
        """What it becomes; raises ValueError where the delta does not belong here."""
        by_id = {**self.by_id}
        for entry in delta.changed:
            _require(entry.info.id in by_id, "changes", entry.info.id)
            by_id[entry.info.id] = entry  # in its place
        for dropped in delta.dropped:
            _require(by_id.pop(dropped, None) is not None, "drops", dropped)
        for entry in delta.entries:
            if by_id.setdefault(entry.info.id, entry) is not entry:
                raise ValueError(f"checkpoint {entry.info.id} is listed twice")
        garbage, gone = self.garbage, frozenset(delta.collected)
        if gone:
            for strange in gone - frozenset(garbage):
                raise ValueError(f"objects collected from {strange.folder} were not garbage")
            garbage = tuple(item for item in garbage if item not in gone)
        condemned = (self.condemned - _whole(delta.collected)) | _whole(delta.garbage)
        return Inventory(by_id=by_id, garbage=garbage + delta.garbage, condemned=condemned)

    def until(self, entries: Sequence[Entry], garbage: Sequence[Garbage]) -> Delta:
        """The delta after which it lists these."""
        appended = _appended(self.entries, entries)
        delta = self._compared(entries) if appended is None else Delta(entries=appended)
        added = _appended(self.garbage, garbage)
        if added is not None:
            return replace(delta, garbage=added)
        before, after = frozenset(self.garbage), frozenset(garbage)
        return replace(
            delta,
            garbage=tuple(item for item in garbage if item not in before),
            collected=tuple(item for item in self.garbage if item not in after),
        )

    def _compared(self, entries: Sequence[Entry]) -> Delta:
        ids = frozenset(entry.info.id for entry in entries)
        known = self.by_id
        return Delta(
            entries=tuple(entry for entry in entries if entry.info.id not in known),
            changed=tuple(entry for entry in entries if entry != known.get(entry.info.id, entry)),
            dropped=tuple(identifier for identifier in known if identifier not in ids),
        )


def _require(known: bool, does: str, checkpoint: str) -> None:
    if not known:
        raise ValueError(f"it {does} checkpoint {checkpoint}, which was not listed")


def _appended(before: tuple[T, ...], after: Sequence[T]) -> tuple[T, ...] | None:
    """What follows ``before`` in ``after``; None if ``after`` does not start with it."""
    return tuple(after[len(before) :]) if tuple(after[: len(before)]) == before else None


def _whole(garbage: Sequence[Garbage]) -> frozenset[str]:
    return frozenset(item.folder for item in garbage if not item.names)
