"""What a checkpoint consists of: from its grid's outlines where they are up to date, else from the manifests.

An outline is a copy. A part of it counts only under the digest by which the catalog, or a record it leads to, names
the original; so one that is stale, damaged, of another run or gone costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.checkpoint.chain import Head
from holdfast.checkpoint.plan import TablePlan
from holdfast.checkpoint.planning import Part, Source, plan_tables
from holdfast.checkpoint.read import VerifiedReader, lineage
from holdfast.errors import DamagedData
from holdfast.format.catalog import Entry

_Known = Mapping[str, Source]  # by the digest of the record or manifest that it is a copy of


def plan_checkpoint(reader: VerifiedReader, head: Head, checkpoint: str) -> dict[str, TablePlan]:
    """What to read of each table to restore a checkpoint."""
    entries = lineage(head, checkpoint)
    known = _outlined(reader, head, entries)
    return plan_tables([_parts(reader, entry, known) for entry in entries])


def _outlined(reader: VerifiedReader, head: Head, entries: Sequence[Entry]) -> _Known:
    """The parts in the outlines of the grid that these checkpoints, baseline first, belong to."""
    known: dict[str, Source] = {}
    baseline = entries[0].info.id
    for ref in (each.ref for each in head.catalog.outlines if each.baseline == baseline and len(entries) > 1):
        try:
            outline = reader.outline(ref)
        except DamagedData:
            continue  # a verification tells; the manifests say the same
        known |= {part.digest: Source(outline, number) for number, part in enumerate(outline.parts)}
    return known


def _parts(reader: VerifiedReader, entry: Entry, known: _Known) -> Sequence[Part]:
    """What each writer saved of a checkpoint."""
    if (source := _source(entry, known, entry.record.digest)) is not None:
        return [source]
    if not known:
        return reader.parts(entry)
    record = reader.record(entry)
    if record.manifest is not None:
        return reader.parts(entry, record)
    sources = [_source(entry, known, ref.digest) for ref in record.parts]
    return [source or reader.part(entry, ref) for source, ref in zip(sources, record.parts, strict=True)]


def _source(entry: Entry, known: _Known, digest: str) -> Source | None:
    found = known.get(digest)
    return found if found is not None and found.checkpoint == entry.info.id else None
