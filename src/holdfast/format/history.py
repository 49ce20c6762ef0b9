"""History pages, and the deltas that pages and catalogs consist of (docs/spec/catalog.md).

What a run lists is the sum of its pages, oldest first, and its catalog. Each of them is a delta: the changes of some
consecutive commits. Two adjacent deltas merge into one with the same effect; what came and went in between leaves no
trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.format import fields
from holdfast.format.catalog import Catalog, Entry, Garbage
from holdfast.format.document import parse, seal_lists, unseal


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What commits did to the list of checkpoints, and to that of the objects that wait for deletion."""

    entries: tuple[Entry, ...] = ()  # added, oldest first
    changed: tuple[Entry, ...] = ()  # take the place of what an earlier delta says of the same checkpoints
    dropped: tuple[str, ...] = ()  # checkpoints of earlier deltas
    garbage: tuple[Garbage, ...] = ()  # added
    collected: tuple[Garbage, ...] = ()  # of earlier deltas: deleted since

    @classmethod
    def of(cls, catalog: Catalog) -> Delta:
        """What a catalog adds to its pages."""
        return cls(**{key: getattr(catalog, key) for key in cls.__slots__})

    @property
    def items(self) -> int:
        """How many items it has."""
        return sum(len(getattr(self, key)) for key in self.__slots__)

    def then(self, later: Delta) -> Delta:
        """One delta in the place of this and the next one."""
        dropped = frozenset(later.dropped)
        changed = {entry.info.id: entry for entry in later.changed}
        added = frozenset(entry.info.id for entry in self.entries)
        collected = frozenset(later.collected)
        fresh = frozenset(self.garbage)
        kept = {entry.info.id: entry for entry in self.changed if entry.info.id not in dropped}
        return Delta(
            entries=tuple(changed.get(entry.info.id, entry) for entry in self.entries if entry.info.id not in dropped)
            + later.entries,
            changed=tuple((kept | {key: entry for key, entry in changed.items() if key not in added}).values()),
            dropped=self.dropped + tuple(each for each in later.dropped if each not in added),
            garbage=tuple(item for item in self.garbage if item not in collected) + later.garbage,
            collected=self.collected + tuple(item for item in later.collected if item not in fresh),
        )

    def lists(self) -> dict[str, Iterable[Any]]:
        """Its lists, whose items become JSON as they are asked for; what is empty is left out, but for the first."""
        found: dict[str, Iterable[Any]] = {"entries": (entry.to_json() for entry in self.entries)}
        for key in ("changed", "garbage", "collected"):
            if several := getattr(self, key):
                found[key] = (item.to_json() for item in several)
        return found | ({"dropped": self.dropped} if self.dropped else {})

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Delta:
        """Parse what ``lists`` produced."""
        if unknown := body.keys() - set(cls.__slots__):
            raise ValueError(f"unknown field {min(unknown)!r}")
        return cls(
            entries=tuple(map(Entry.from_json, fields.items(body["entries"], "entries"))),
            changed=tuple(map(Entry.from_json, fields.items(body.get("changed", []), "changed"))),
            dropped=fields.texts(body.get("dropped", []), "dropped"),
            garbage=tuple(map(Garbage.from_json, fields.items(body.get("garbage", []), "garbage"))),
            collected=tuple(map(Garbage.from_json, fields.items(body.get("collected", []), "collected"))),
        )


def encode_page(delta: Delta) -> bytearray:
    """A history page as the bytes of its object."""
    return seal_lists("history", 1, delta.lists())


def decode_page(data: bytes | bytearray | memoryview, *, name: str, verified: bool = False) -> Delta:
    """Parse and check the history page ``name``; ``verified``: its bytes were compared with their digest."""
    body = unseal("history", 1, data, name=name, verified=verified)
    return parse(name, lambda: Delta.from_json(body))
