"""A run and one of its checkpoints at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.commit.chain import Head
from holdfast.checkpoint.commit.lease import READER, WRITER, Lease, live_leases
from holdfast.checkpoint.inspect.skeleton import read_skeleton
from holdfast.checkpoint.inspect.stored_precision import StoredRows, stored_rows
from holdfast.checkpoint.read.fetcher import Fetcher, Manifests, lineage
from holdfast.checkpoint.restore.saved_state import checked_state, shared_state
from holdfast.errors import DamagedData, RunError
from holdfast.format.catalog import Entry, Garbage, folder_of
from holdfast.format.layout import row_bytes
from holdfast.format.manifest import Manifest
from holdfast.storage import ObjectInfo, Store
from holdfast.types import CheckpointInfo, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """A table, and how much of it the checkpoint itself holds.

    Args:
        spec: Its name, rows and columns.
        size_bytes: The size of all its row records.
        rows_written: Rows that the checkpoint wrote.
        stored: How the weights of these rows are stored, such as "exact".
        loss: The mean distance (L2) of a stored row from the original.
    """

    spec: TableSpec
    size_bytes: int
    rows_written: int
    stored: str = "exact"
    loss: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSummary:
    """What one rank wrote of a checkpoint.

    Args:
        rank: The rank.
        bundles: How many bundles it wrote.
        rows_written: Table rows it wrote.
        size_bytes: The bytes it wrote.
    """

    rank: int
    bundles: int
    rows_written: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run as described by its newest readable catalog, and one checkpoint in full.

    Args:
        url: Where the run is.
        run: The id of the run.
        catalog: The number of the newest readable catalog.
        term: The current term.
        writer: The process that committed the catalog.
        reason: What the commit did.
        committed_s: When, in seconds since 1970, by the writer's clock.
        damaged: Newer catalogs that cannot be read.
        head: The id of the checkpoint that training continues from. None: there is none yet.
        checkpoints: How many checkpoints are kept.
        abandoned: How many of these are on an abandoned timeline.
        kept_bytes: The bytes they wrote.
        priority_saves: Priority saves since the newest checkpoint.
        priority_bytes: The bytes they wrote.
        garbage: What was dropped and awaits deletion.
        garbage_objects: How many objects that is.
        garbage_bytes: Their size.
        leases: Who is reading or writing the run.
        checkpoint: The checkpoint that is described.
        lineage: The checkpoints it depends on, baseline first, itself last.
        restore_bytes: What a restore reads at most.
        tables: Its tables.
        parts: What each rank wrote of it.
        pls: The portion of lost samples when it was taken. None: not metered.
        pls_budget: The budget for it. None: there is none.
    """

    url: str
    run: str
    catalog: int
    term: int
    writer: str
    reason: str
    committed_s: float
    damaged: tuple[str, ...]
    head: str | None
    checkpoints: int
    abandoned: int
    kept_bytes: int
    priority_saves: int
    priority_bytes: int
    garbage: tuple[Garbage, ...]
    garbage_objects: int
    garbage_bytes: int
    leases: tuple[Lease, ...]
    checkpoint: CheckpointInfo
    lineage: tuple[CheckpointInfo, ...]
    restore_bytes: int
    tables: tuple[TableSummary, ...]
    parts: tuple[PartSummary, ...]
    pls: float | None
    pls_budget: float | None


def all_leases(store: Store) -> tuple[Lease, ...]:
    """Who reads or writes the run just now."""
    return tuple(lease for kind in (WRITER, READER) for lease in live_leases(store, kind))


def summarize(
    url: str,
    fetcher: Fetcher,
    head: Head,
    entry: Entry,
    *,
    leases: tuple[Lease, ...] = (),
    waiting: Sequence[ObjectInfo] = (),
) -> RunSummary:
    """Read the checkpoint's manifests, no rows; ``leases`` are those of others, ``waiting`` the garbage's objects."""
    catalog = head.catalog
    infos = [each.info for each in head.entries]
    chain = tuple(each.info for each in lineage(head, entry.info.id))
    parts = fetcher.parts(entry)
    meter = _meter(fetcher, parts)
    return RunSummary(
        url=url,
        run=catalog.run,
        catalog=catalog.number,
        term=catalog.term,
        writer=catalog.writer,
        reason=catalog.reason,
        committed_s=catalog.created_s,
        damaged=head.damaged,
        head=catalog.head,
        checkpoints=len(infos),
        abandoned=sum(info.abandoned for info in infos),
        kept_bytes=_size_bytes(infos),
        priority_saves=len(catalog.priority),
        priority_bytes=_size_bytes([each.info for each in catalog.priority]),
        garbage=head.garbage,
        garbage_objects=len(waiting),
        garbage_bytes=sum(info.size_bytes for info in waiting),
        leases=leases,
        checkpoint=entry.info,
        lineage=chain,
        restore_bytes=_restore_bytes(entry, chain, parts),
        tables=_tables(entry.info, parts),
        parts=_parts(parts),
        pls=meter.get("pls"),
        pls_budget=meter.get("budget"),
    )


def _meter(fetcher: Fetcher, parts: Manifests) -> Mapping[str, float | None]:
    """The meter of lost samples; empty where there is none. What is damaged is for a verification to tell."""
    try:
        first = checked_state(read_skeleton(fetcher, parts[0]), parts[0])
        return shared_state(first, parts[0]).job.pls or {}
    except (DamagedData, RunError):  # or what DCP saved, which has none
        return {}


def _restore_bytes(entry: Entry, chain: Sequence[CheckpointInfo], parts: Manifests) -> int:
    """What the chain wrote; of a checkpoint without tables that refers to sections of others, what it holds."""
    refers = bool(entry.rounds) and not any(part.tables for part in parts)
    return entry.info.full_bytes if refers else _size_bytes(chain)


def _size_bytes(infos: Sequence[CheckpointInfo]) -> int:
    return sum(info.size_bytes for info in infos)


def _tables(info: CheckpointInfo, parts: Manifests) -> tuple[TableSummary, ...]:
    specs = {table.spec.name: table.spec for part in parts for table in part.tables}
    stored = stored_rows([info], [parts])
    return tuple(_table(spec, [each for each in stored if each.table == name]) for name, spec in specs.items())


def _table(spec: TableSpec, stored: Sequence[StoredRows]) -> TableSummary:
    rows = sum(each.rows for each in stored)
    return TableSummary(
        spec=spec,
        size_bytes=spec.rows * row_bytes(spec.columns),
        rows_written=rows,
        stored=" and ".join(dict.fromkeys(each.codec for each in stored)) or "exact",
        loss=sum(each.loss * each.rows for each in stored) / max(1, rows),
    )


def _written(part: Manifest) -> int:
    """The bytes of its bundles; those of a part without tables may lie in the folders of earlier checkpoints."""
    own = (bundle for bundle in part.bundles if part.tables or folder_of(bundle.name) == part.checkpoint)
    return sum(bundle.size_bytes for bundle in own)


def _parts(parts: Manifests) -> tuple[PartSummary, ...]:
    return tuple(
        PartSummary(
            rank=part.rank, bundles=len(part.bundles), rows_written=part.rows_written, size_bytes=_written(part)
        )
        for part in parts
    )
