"""The objects that one round writes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.changes import Rearranged
from holdfast.checkpoint.grid.bundles import Moved, Placed, put_bundle
from holdfast.checkpoint.grid.index import ChunkKey
from holdfast.format.bundle import Directory
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
        self._parts: dict[str, Ref] = {}
        self.written_bytes = 0
        self.may_count = False  # whether a commit that refers to its objects may have succeeded
        self.moved: dict[ChunkKey, list[Placed]] = {}
        self.cohort_of: dict[ChunkKey, int] = {}
        self.directories: dict[str, Directory] = {}  # of the bundles it wrote

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

    def put_record(self, entry: Entry, manifest: Manifest, unused: Sequence[str], attempt: int) -> Rearranged:
        """Write a cohort's record with this writer's part replaced, on top of whatever the entry says now.

        Of a single writer the manifest is in the record: that is one object less to read for each cohort.
        """
        checkpoint = entry.info.id
        old = Record.decode(self._store.get(entry.record.name), name=entry.record.name)
        if manifest.world == 1:
            new = Record(checkpoint=checkpoint, parts=(), manifest=manifest.to_json())
        else:
            part = self._part(manifest)
            new = Record(checkpoint=checkpoint, parts=(*old.parts[: self._rank], part, *old.parts[self._rank + 1 :]))
        record = self._put_document(f"checkpoint-{checkpoint}-{self._rank:05d}-{attempt}", new.encode())
        documents = [*(part.name for part in old.parts[self._rank : self._rank + 1]), entry.record.name]
        return Rearranged(
            before=entry.record, after=record, freed=(*unused, *documents), rounds=(*entry.rounds, self._folder)
        )

    def _part(self, manifest: Manifest) -> Ref:
        """The object of a cohort's new manifest; written once, however often the commit is tried."""
        if manifest.checkpoint not in self._parts:
            leaf = f"part-{manifest.checkpoint}-{self._rank:05d}"
            self._parts[manifest.checkpoint] = self._put_document(leaf, manifest.encode())
        return self._parts[manifest.checkpoint]

    def _put(self, kind: str, moved: list[Moved]) -> None:
        if not moved:
            return
        name = object_name(self._folder, f"{kind}-{self._rank:05d}-{self._count:06d}.safetensors")
        self._count += 1
        self._written.append(name)
        placed, self.directories[name] = put_bundle(self._store, name, moved)
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
