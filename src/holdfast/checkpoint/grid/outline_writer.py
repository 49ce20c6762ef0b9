"""Keeps a grid's outline close to its manifests, so a restore need not read them one by one.

A new outline is written once a given share of the parts has changed since the last one, so the bytes written for
outlines grow with the changes and not with the square of the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import Clocks, outline
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.errors import CheckpointNotFound, DamagedData, StorageError, TakenOver
from holdfast.format.bundle import BLOCK_BYTES, Directory
from holdfast.format.catalog import OutlineRef, Ref, object_name
from holdfast.format.document import digest
from holdfast.format.manifest import BundleRef, Manifest
from holdfast.format.outline import CHUNK_COLUMNS, Outline
from holdfast.format.outline_document import encode_outline
from holdfast.runtime import Runtime
from holdfast.storage import Store

_FEWEST = 4  # changed parts that are worth an outline
_SHARE = 16  # and one in so many of all


class Original(NamedTuple):
    """A part that an outline copies, and the digest that it is known by."""

    digest: str
    manifest: Manifest

    @classmethod
    def of(cls, manifest: Manifest, part_list: Ref) -> Original:
        """A single writer's by its part list's, so that not even that has to be read; one of many by its own."""
        return cls(part_list.digest if manifest.world == 1 else digest(manifest.encode()), manifest)


class OutlineWriter:
    """The outlines of one writer. For one thread."""

    def __init__(self, store: Store, chain: Chain, *, rank: int, term: int, runtime: Runtime) -> None:
        self._store = store
        self._chain = chain
        self._rank = rank
        self._term = term
        self._runtime = runtime
        self._outlined: set[str] = set()
        self._directories: dict[str, Directory] = {}

    def begin(self, head: Head, baseline: str) -> None:
        """Look up what is already outlined of the grid above a baseline."""
        self._outlined, self._directories = set(), {}
        for each in head.catalog.outlines:
            if (each.baseline, each.rank) == (baseline, self._rank):
                with suppress(DamagedData):
                    found = Fetcher(self._store).outline(each.ref)
                    self._outlined = {part.digest for part in found.parts}
                    self._directories = dict(found.directories)

    def learn(self, directories: Mapping[str, Directory]) -> None:
        """The block checksums of bundles that were just written."""
        self._directories |= directories

    def is_due(self, parts: Sequence[Original]) -> bool:
        """Whether enough of these parts of a grid differ from what is outlined."""
        changed = sum(part.digest not in self._outlined for part in parts)
        return changed >= max(_FEWEST, len(parts) // _SHARE)

    def write(self, folder: str, baseline: Original, parts: Sequence[Original]) -> int:
        """Outline these parts above a baseline and commit that; how many bytes it takes.

        The baseline's own part is among them, unless a copy of it would take more than all the others do.
        """
        copied = [baseline, *parts] if _length(baseline) <= sum(map(_length, parts)) else parts
        directories = self._all_directories(copied)
        chosen = [part for part in copied if all(bundle.name in directories for bundle in _bundles(part.manifest))]
        data = encode_outline(Outline.of([m for _, m in chosen], [d for d, _ in chosen], directories))
        name = object_name(folder, f"outline-{self._rank:05d}")
        self._store.put(name, data)
        ref = Ref(name=name, size_bytes=len(data), digest=digest(data))
        self._commit(OutlineRef(baseline=baseline.manifest.checkpoint, rank=self._rank, ref=ref))
        self._outlined = {part.digest for part in parts}
        self._directories = directories
        return len(data)

    def _all_directories(self, parts: Iterable[Original]) -> dict[str, Directory]:
        """The block checksums of the parts' bundles; those of a damaged one are left out, and so will be its parts."""
        fetcher = Fetcher(self._store)
        found: dict[str, Directory] = {}
        for bundle in (bundle for part in parts for bundle in _bundles(part.manifest)):
            if bundle.name not in found:
                with suppress(DamagedData):
                    known = self._directories.get(bundle.name)
                    found[bundle.name] = fetcher.directory(bundle) if known is None else known
        return found

    def _commit(self, written: OutlineRef) -> None:
        clocks = Clocks(wall_s=self._runtime.wall_s, store_s=self._store.now_s)
        try:
            self._chain.commit(outline(written, term=self._term, clocks=clocks))
        except (CheckpointNotFound, TakenOver):
            with suppress(StorageError):  # a later term deletes it
                self._store.delete([written.ref.name])
            raise


def _length(part: Original) -> int:
    """How many numbers a part takes in an outline: those of its chunks, and the checksums of their blocks."""
    lengths = [chunk.place.length for table in part.manifest.tables for chunk in table.chunks]
    return len(CHUNK_COLUMNS) * len(lengths) + sum(-(-length // BLOCK_BYTES) for length in lengths)


def _bundles(manifest: Manifest) -> Iterable[BundleRef]:
    """Those with rows in them."""
    used = dict.fromkeys(chunk.place.bundle for part in manifest.tables for chunk in part.chunks)
    return (manifest.bundles[number] for number in used)
