"""What a checkpoint consists of: from its grid's outlines if they are current, else from the manifests.

An outline is a copy. A part of it counts only under the digest by which the catalog, or a part list that the catalog
leads to, names the original; so a stale, damaged, foreign or missing outline costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.read.fetcher import Fetcher, lineage
from holdfast.checkpoint.read.part_agreement import JoinedPart, check_parts
from holdfast.checkpoint.read.plan_builder import Part, Source, plan_tables
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.errors import DamagedData
from holdfast.format.catalog import Entry, Ref
from holdfast.format.manifest import Manifest
from holdfast.types import Kind

_Known = Mapping[str, Source]  # by the digest of the part list or manifest that it is a copy of


def plan_checkpoint(fetcher: Fetcher, head: Head, checkpoint: str) -> dict[str, TablePlan]:
    """What to read of each table to restore a checkpoint."""
    return plan_tables(find_parts(fetcher, head, lineage(head, checkpoint)))


def find_parts(
    fetcher: Fetcher, head: Head, entries: Sequence[Entry], found: Mapping[Ref, Sequence[Part]] | None = None
) -> list[Sequence[Part]]:
    """What each writer saved of these checkpoints, baseline first; ``found`` before of some, by their records."""
    found = found or {}
    missing = sum(entry.part_list not in found for entry in entries)
    known = _outlined(fetcher, head, entries[0].info.id) if missing > 1 else {}
    return [found.get(entry.part_list) or _parts(fetcher, entry, known) for entry in entries]


def _outlined(fetcher: Fetcher, head: Head, baseline: str) -> _Known:
    """The parts in the outlines of the grid above a baseline."""
    known: dict[str, Source] = {}
    for ref in (each.ref for each in head.catalog.outlines if each.baseline == baseline):
        try:
            outline = fetcher.outline(ref)
        except DamagedData:
            continue  # a verification tells; the manifests say the same
        known |= {part.digest: Source(outline, number) for number, part in enumerate(outline.parts)}
    return known


def _parts(fetcher: Fetcher, entry: Entry, known: _Known) -> Sequence[Part]:
    """What each writer saved of a checkpoint."""
    if (source := _source(entry, known, entry.part_list.digest)) is not None:
        return [source] if _is_whole(entry, [source]) else fetcher.parts(entry)
    if not known:
        return fetcher.parts(entry)
    part_list = fetcher.part_list(entry)
    sources = [_source(entry, known, ref.digest) for ref in part_list.parts]
    if part_list.manifest is not None or not any(sources):
        return fetcher.parts(entry, part_list)
    parts = [source or fetcher.part(entry, ref) for source, ref in zip(sources, part_list.parts, strict=True)]
    return parts if _is_whole(entry, parts) else fetcher.parts(entry, part_list)


def _is_whole(entry: Entry, parts: Sequence[Part]) -> bool:
    """Whether these parts, some of them from an outline, make up the checkpoint; an incomplete outline is useless."""
    if len(parts) == 1 and isinstance(alone := parts[0], Source) and entry.info.kind is not Kind.FULL:
        outline, part = alone
        return outline.stands_alone(part) and outline.rows_of(part) == entry.info.rows_written
    joined = [JoinedPart.of(part) if isinstance(part, Manifest) else JoinedPart.outlined(*part) for part in parts]
    try:
        check_parts(entry, joined)
    except DamagedData:
        return False
    return True


def _source(entry: Entry, known: _Known, digest: str) -> Source | None:
    found = known.get(digest)
    return found if found is not None and found.checkpoint == entry.info.id else None
