"""Whether an outline agrees with the manifests it copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests
from holdfast.errors import DamagedData
from holdfast.format.catalog import Entry, OutlineRef
from holdfast.format.document import digest
from holdfast.format.manifest import BundleRef, Manifest, RowsChunk
from holdfast.format.outline import Outline

_Chunk = tuple[str, BundleRef, RowsChunk]  # table, bundle, and what else is said of it


def check_outline(
    fetcher: Fetcher, fresh: Fetcher, head: Head, each: OutlineRef, known: Mapping[str, Manifests]
) -> None:
    """Raise DamagedData if a part that a restore would use differs from the original.

    ``fetcher`` has read the heads of the bundles; ``fresh`` has not, so it takes nothing from the outline for granted.
    """
    outline = fresh.outline(each.ref)
    for number, part in enumerate(outline.parts):
        entry = head.by_id.get(part.checkpoint)
        for original in known.get(part.checkpoint, ()):
            if entry is not None and original.rank == part.rank and _names(part.digest, entry, original):
                _compare(fetcher, outline, number, original, each.ref.name)


def _names(named: str, entry: Entry, original: Manifest) -> bool:
    """Whether a restore finds the original under this digest."""
    return named == (entry.part_list.digest if original.world == 1 else digest(original.encode()))


def _compare(fetcher: Fetcher, outline: Outline, number: int, original: Manifest, name: str) -> None:
    timeline, start, count = outline.parts[number].replacing
    shares = [(each.spec, each.start, each.stop, each.whole) for each in outline.shares.of_part(number)]
    same = (
        outline.timelines[timeline][start : start + count] == original.replacing
        and shares == [(each.spec, each.start, each.stop, each.whole) for each in original.tables]
        and _outlined(outline, number) == _original(original)
    )
    if not same:
        raise DamagedData(name, f"disagrees with the manifests of checkpoint {original.checkpoint}")
    for bundle in {bundle.name: bundle for _, bundle, _ in _original(original)}.values():
        if not np.array_equal(outline.directories[bundle.name], fetcher.directory(bundle)):
            raise DamagedData(name, f"has different checksums from {bundle.name}")


def _original(manifest: Manifest) -> list[_Chunk]:
    return [
        (table.spec.name, manifest.bundles[chunk.place.bundle], _anywhere(chunk))
        for table in manifest.tables
        for chunk in table.chunks
    ]


def _outlined(outline: Outline, number: int) -> list[_Chunk]:
    share_of = outline.chunks["share"]
    found = []
    for at in np.flatnonzero(outline.shares.part[share_of] == number).tolist():
        chunk, share = outline.chunk(at), outline.shares[int(share_of[at])]
        found.append((share.spec.name, outline.bundles[chunk.place.bundle], _anywhere(chunk)))
    return found


def _anywhere(chunk: RowsChunk) -> RowsChunk:
    return replace(chunk, place=replace(chunk.place, bundle=0))
