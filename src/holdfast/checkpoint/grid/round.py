"""The objects that one round writes, and the commit that makes them count."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import Clocks, Rearranged, RecordMoved, own, rearrange
from holdfast.checkpoint.grid.bundles import Moved, Placed, put_bundle
from holdfast.checkpoint.grid.index import ChunkKey
from holdfast.errors import CheckpointNotFound, StorageError
from holdfast.format.bundle import Directory
from holdfast.format.catalog import Entry, PartList, Ref, object_name
from holdfast.format.document import digest
from holdfast.format.manifest import Manifest
from holdfast.storage import Store

_LIVING, _REPLACED = "rows", "replaced"  # what the names of its bundles begin with
_CHUNKS_PER_BUNDLE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a writer's part of a checkpoint is after a round, and the bundles that nothing refers to then."""

    manifest: Manifest
    unused: tuple[str, ...]


class Round:
    """The objects of one round, in their own folder."""

    def __init__(self, store: Store, name: str, *, rank: int) -> None:
        self._store = store
        self._folder = name
        self._rank = rank
        self._count = 0
        self._waiting: list[Moved] = []
        self._written: list[str] = []
        self._parts: dict[str, Ref] = {}
        self._may_count = False  # whether a commit that refers to its objects may have succeeded
        self.written_bytes = 0
        self.moved: dict[ChunkKey, list[Placed]] = {}
        self.cohort_of: dict[ChunkKey, int] = {}
        self.directories: dict[str, Directory] = {}  # of the bundles it wrote

    @property
    def cohorts(self) -> list[int]:
        """Those whose chunks were moved."""
        return sorted(set(self.cohort_of.values()))

    def add(self, living: list[Moved], replaced: list[Moved], *, together: bool) -> None:
        """Write a bundle's live records now, and its replaced ones later, together with those of other bundles."""
        self._put(_LIVING, living)
        if together:
            self._waiting += replaced
        else:
            self._put(_REPLACED, replaced)

    def finish(self) -> None:
        """Write what waits, in as many bundles as safetensors' header allows."""
        for start in range(0, len(self._waiting), _CHUNKS_PER_BUNDLE):
            self._put(_REPLACED, self._waiting[start : start + _CHUNKS_PER_BUNDLE])
        self._waiting = []

    def commit(self, chain: Chain, rebuilt: Collection[Rebuilt], *, term: int, clocks: Clocks) -> dict[str, Ref]:
        """Point checkpoints to new records and return them; retried if other writers change these checkpoints too.

        The contents of the checkpoints stay the same.
        """
        attempt = 0
        while True:
            head = own(chain.head(), term)
            updates = {each.manifest.checkpoint: self._put_record(head, each, attempt) for each in rebuilt}
            self._may_count = True  # whatever the store answers from here on, the commit may be there
            try:
                chain.commit(rearrange(updates, term=term, clocks=clocks))
                return {checkpoint: update.after for checkpoint, update in updates.items()}
            except RecordMoved:
                self._may_count = False
                attempt += 1

    def give_up(self) -> None:
        """Delete what was written if nothing can refer to it; where even that fails, a later term does it."""
        if not self._may_count:
            with suppress(StorageError):
                self._store.delete(self._written)

    def _put_record(self, head: Head, rebuilt: Rebuilt, attempt: int) -> Rearranged:
        """Write a cohort's part list with this writer's part replaced, on top of whatever its entry says now.

        Of a single writer the manifest is in the part list: that is one object less to read for each cohort.
        """
        manifest = rebuilt.manifest
        entry = _entry(head, manifest.checkpoint)
        old = PartList.decode(self._store.get(entry.part_list.name), name=entry.part_list.name)
        if manifest.world == 1:
            new = PartList(checkpoint=manifest.checkpoint, parts=(), manifest=manifest.to_json())
        else:
            parts = (*old.parts[: self._rank], self._part(manifest), *old.parts[self._rank + 1 :])
            new = PartList(checkpoint=manifest.checkpoint, parts=parts)
        part_list = self._put_document(f"checkpoint-{manifest.checkpoint}-{self._rank:05d}-{attempt}", new.encode())
        documents = [*(part.name for part in old.parts[self._rank : self._rank + 1]), entry.part_list.name]
        return Rearranged(
            before=entry.part_list,
            after=part_list,
            freed=(*rebuilt.unused, *documents),
            rounds=(*entry.rounds, self._folder),
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


def is_shared(bundle: str) -> bool:
    """Whether cohorts may have a bundle in common: one of replaced records."""
    return bundle.rpartition("/")[2].startswith(_REPLACED)


def _entry(head: Head, checkpoint: str) -> Entry:
    entry = head.by_id.get(checkpoint)
    if entry is None:
        raise CheckpointNotFound(f"checkpoint {checkpoint} was dropped while it was being rearranged")
    return entry
