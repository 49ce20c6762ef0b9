"""The objects that one round writes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.changes import Rearranged
from holdfast.checkpoint.grid.bundles import Moved, Placed, put_bundle
from holdfast.checkpoint.grid.index import ChunkKey
from holdfast.format.catalog import Entry, Record, Ref, object_name
from holdfast.format.document import digest
from holdfast.format.manifest import Manifest
from holdfast.storage import Store

LIVING, REPLACED = "rows", "replaced"  # what the names of its bundles begin with
_CHUNKS_PER_BUNDLE = 10_000


class Round:
    """The objects of one round, in a folder of its own."""

    def __init__(self, store: Store, name: str, *, rank: int) -> None:
        self._store = store
        self._folder = name
        self._rank = rank
        self._count = 0
        self._waiting: list[Moved] = []
        self._written: list[str] = []
        self.written_bytes = 0
        self.may_count = False  # whether a commit that refers to its objects may have succeeded
        self.moved: dict[ChunkKey, list[Placed]] = {}
        self.cohort_of: dict[ChunkKey, int] = {}

    @property
    def cohorts(self) -> list[int]:
        """Those whose chunks were moved."""
        return sorted(set(self.cohort_of.values()))

    def add(self, alive: list[Moved], dead: list[Moved], *, together: bool) -> None:
        """Write a bundle's living records at once, its replaced ones later with those of the others."""
        self._put(LIVING, alive)
        if together:
            self._waiting += dead
        else:
            self._put(REPLACED, dead)

    def finish(self) -> None:
        """Write what waits, in as many bundles as safetensors' header allows."""
        for start in range(0, len(self._waiting), _CHUNKS_PER_BUNDLE):
            self._put(REPLACED, self._waiting[start : start + _CHUNKS_PER_BUNDLE])
        self._waiting = []

    def discard(self) -> None:
        """Delete what was written of a round that will not be committed."""
        self._store.delete(self._written)

    def put_part(self, manifest: Manifest) -> Ref:
        """Write a cohort's new manifest."""
        return self._put_document(f"part-{manifest.checkpoint}-{self._rank:05d}", manifest.encode())

    def put_record(self, entry: Entry, part: Ref, unused: Sequence[str], attempt: int) -> Rearranged:
        """Write a record with this writer's part replaced, on top of whatever the entry says now."""
        old = Record.decode(self._store.get(entry.record.name), name=entry.record.name)
        parts = (*old.parts[: self._rank], part, *old.parts[self._rank + 1 :])
        leaf = f"checkpoint-{entry.info.id}-{self._rank:05d}-{attempt}"
        record = self._put_document(leaf, Record(checkpoint=entry.info.id, parts=parts).encode())
        freed = (*unused, old.parts[self._rank].name, entry.record.name)
        return Rearranged(before=entry.record, after=record, freed=freed, rounds=(*entry.rounds, self._folder))

    def _put(self, kind: str, moved: list[Moved]) -> None:
        if not moved:
            return
        name = object_name(self._folder, f"{kind}-{self._rank:05d}-{self._count:06d}.safetensors")
        self._count += 1
        self._written.append(name)
        placed = put_bundle(self._store, name, moved)
        self.written_bytes += placed[0].bundle.size_bytes
        for each, new in zip(moved, placed, strict=True):
            self.moved.setdefault(each.source, []).append(new)
            self.cohort_of[each.source] = each.cohort

    def _put_document(self, leaf: str, data: bytes) -> Ref:
        name = object_name(self._folder, leaf)
        self._written.append(name)
        self._store.put(name, data)
        self.written_bytes += len(data)
        return Ref(name=name, size_bytes=len(data), digest=digest(data))
