"""Checks the parts of a checkpoint against each other and against the catalog's entry before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.checkpoint.read.strips import whole_specs
from holdfast.errors import DamagedData
from holdfast.format.catalog import Entry
from holdfast.format.manifest import Manifest
from holdfast.format.outline import Outline
from holdfast.types import Kind, TableSpec


class PartShare(NamedTuple):
    """A part's rows of a table."""

    spec: TableSpec
    start: int
    stop: int
    whole: bool


class JoinedPart(NamedTuple):
    """What one writer saved, as far as the others' parts must agree with it. ``world`` is not known of outlines."""

    rank: int
    shares: Sequence[PartShare]
    rows_written: int
    world: int | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> JoinedPart:
        """The part that a manifest describes."""
        shares = [PartShare(part.spec, part.start, part.stop, part.whole) for part in manifest.tables]
        return cls(manifest.rank, shares, manifest.rows_written, manifest.world)

    @classmethod
    def outlined(cls, outline: Outline, part: int) -> JoinedPart:
        """A part of an outline."""
        shares = [PartShare(each.spec, each.start, each.stop, each.whole) for each in outline.shares.of_part(part)]
        return cls(outline.parts[part].rank, shares, outline.rows_of(part))


def check_parts(entry: Entry, parts: Sequence[JoinedPart]) -> None:
    """Raise DamagedData unless these are all parts of the checkpoint, one of each rank, and cover its tables."""
    name = entry.part_list.name
    if [part.rank for part in parts] != list(range(len(parts))) or not parts:
        raise DamagedData(name, f"leads to the parts of ranks {[part.rank for part in parts]}, not to one of each")
    if any(part.world not in (None, len(parts)) for part in parts):
        raise DamagedData(name, f"leads to {len(parts)} parts of {[part.world for part in parts]}")
    written = sum(part.rows_written for part in parts)
    if written != entry.info.rows_written:
        raise DamagedData(name, f"leads to {written} rows, where the catalog says {entry.info.rows_written}")
    tables = [{share.spec.name for share in part.shares} for part in parts]
    if any(names != tables[0] for names in tables):
        raise DamagedData(name, "leads to parts of different tables")
    by_table = _by_table(parts)
    for shares in by_table:
        _check_table(entry, shares)
    try:
        whole_specs(shares[0].spec for shares in by_table)
    except ValueError as error:
        raise DamagedData(name, f"leads to parts whose tables are not whole: {error}") from None


def _by_table(parts: Sequence[JoinedPart]) -> list[list[PartShare]]:
    """The shares of each table, in the order of rows: which writer holds which of them is the job's own business."""
    found: dict[str, list[PartShare]] = {}
    for part in parts:
        for share in part.shares:
            found.setdefault(share.spec.name, []).append(share)
    return [sorted(shares, key=lambda share: (share.start, share.stop)) for shares in found.values()]


def _check_table(entry: Entry, shares: Sequence[PartShare]) -> None:
    name, spec, done = entry.part_list.name, shares[0].spec, 0
    for share in shares:
        if share.spec is not spec and share.spec != spec:
            raise DamagedData(name, f"leads to parts in which table {spec.name} has different shapes")
        if share.start != done:
            raise DamagedData(name, f"leads to parts whose ranges of table {spec.name} overlap or leave gaps")
        done = share.stop
        if entry.info.kind is Kind.FULL and not share.whole:
            raise DamagedData(name, f"belongs to a full checkpoint, but lacks rows of table {spec.name}")
    if done != spec.rows:
        raise DamagedData(name, f"leads to parts that lack rows of table {spec.name}")
