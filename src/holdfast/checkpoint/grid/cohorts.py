"""What one writer saved of a grid's checkpoints, as currently arranged, and which chunk holds each row's newest record.

Checkpoints are numbered from the baseline, which is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.checkpoint.grid.bundles import Placed, bundle_names, chunks_of, rebuild, replacing_in
from holdfast.checkpoint.grid.index import ChunkKey, Holding, Ids, TableIndex
from holdfast.checkpoint.grid.outline_writer import Original
from holdfast.checkpoint.grid.round import Rebuilt, Round, is_shared
from holdfast.checkpoint.read.chunk_ids import checked_ids
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.codec.chunk import record_bytes
from holdfast.format.catalog import Entry, Ref
from holdfast.format.manifest import Manifest, TablePart
from holdfast.format.rows import id_bytes

RowIds = Mapping[ChunkKey, Ids]


class CohortBundle(NamedTuple):
    """A bundle that holds rows of a cohort."""

    cohort: int
    name: str


@dataclass(slots=True, kw_only=True)
class CohortPart:
    """What the writer saved of one checkpoint."""

    original: Original
    holdings: dict[ChunkKey, Holding] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        """What its part list leads to."""
        return self.original.manifest

    @property
    def checkpoint(self) -> str:
        """The id of its checkpoint."""
        return self.manifest.checkpoint

    def bundle_bytes(self, name: str) -> int:
        """The size of one of its bundles."""
        return next(bundle.size_bytes for bundle in self.manifest.bundles if bundle.name == name)


class Cohorts:
    """The checkpoints of a grid, baseline first; none where there is nothing to arrange."""

    def __init__(self, *, rank: int) -> None:
        self._rank = rank
        self._parts: list[CohortPart] = []
        self._tables: dict[str, TableIndex] = {}
        self._damaged: set[CohortBundle] = set()

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: int) -> CohortPart:
        return self._parts[number]

    def __iter__(self) -> Iterator[CohortPart]:
        return iter(self._parts)

    @property
    def newest(self) -> int:
        """The number of the last one; -1 if there is none."""
        return len(self._parts) - 1

    @property
    def originals(self) -> list[Original]:
        """What the records of all checkpoints above the baseline lead to."""
        return [part.original for part in self._parts[1:]]

    @property
    def bytes_above_baseline(self) -> int:
        """Bytes of live records, as far as they are arranged."""
        return sum(held.alive_bytes for part in self._parts for held in part.holdings.values())

    @property
    def index_bytes(self) -> int:
        """Memory used by the indexes."""
        return sum(table.nbytes for table in self._tables.values())

    def later(self, number: int) -> list[str]:
        """The ids of the checkpoints after one."""
        return [part.checkpoint for part in self._parts[number + 1 :]]

    def bundles(self) -> dict[CohortBundle, list[Holding]]:
        """The chunks with live records by bundle; unreadable ones are left out."""
        bundles: dict[CohortBundle, list[Holding]] = {}
        for held in (held for part in self._parts for held in part.holdings.values() if held.alive):
            bundle = CohortBundle(held.cohort, held.key[0])
            if bundle not in self._damaged:
                bundles.setdefault(bundle, []).append(held)
        return bundles

    def leave_alone(self, bundle: CohortBundle) -> None:
        """Exclude an unreadable bundle: copying it would hide the damage."""
        self._damaged.add(bundle)

    # ---- what is saved -------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything."""
        self._parts, self._tables = [], {}

    def load(self, entries: Sequence[Entry], fetcher: Fetcher, ids: RowIds) -> None:
        """Begin anew with these checkpoints, baseline first; ``ids`` are the rows of chunks, where they are known."""
        self.clear()
        later = [entry.info.id for entry in entries]
        for entry in entries:
            later.pop(0)
            ours = next((part for part in fetcher.parts(entry) if part.rank == self._rank), None)
            if ours is None or not self._same_rows(ours):
                self.clear()  # another number of writers: not before the next baseline
                return
            self.append(Original.of(ours, entry.part_list), later, fetcher, ids)

    def append(self, original: Original, later: Sequence[str], fetcher: Fetcher, ids: RowIds) -> None:
        """Add a checkpoint; ``later`` are those committed after it."""
        manifest = original.manifest
        part = CohortPart(original=original)
        self._parts.append(part)
        arranged = replacing_in(manifest, later)
        for rows in manifest.tables:
            table = self._tables.setdefault(rows.spec.name, TableIndex(rows.start, rows.stop))
            if rows.whole:
                self._restart(table)
                continue
            for placed in chunks_of(manifest, rows):
                found = ids.get(placed.key)
                held = part.holdings[placed.key] = _holding(self.newest, rows, placed, arranged)
                table.add(held, stored_ids(fetcher, placed) if found is None else found)

    def _same_rows(self, manifest: Manifest) -> bool:
        return not self._parts or _ranges(self._parts[0].manifest) == _ranges(manifest)

    def _restart(self, table: TableIndex) -> None:
        """The table was saved whole: no later checkpoint needs anything older, and it is not arranged any more."""
        for held in table.holdings:
            self._parts[held.cohort].holdings.pop(held.key, None)
        table.restart()

    # ---- what a round makes of it --------------------------------------------------------------------------------

    def rebuilt(self, work: Round) -> dict[int, Rebuilt]:
        """What becomes of the cohorts whose chunks a round has moved, by their numbers."""
        manifests = {n: rebuild(self._parts[n].manifest, work.moved, self.later(n)) for n in work.cohorts}
        kept = bundle_names([manifests.get(n, part.manifest) for n, part in enumerate(self._parts)])
        unused = {n: bundle_names([self._parts[n].manifest]) - kept for n in manifests}
        return {
            n: Rebuilt(manifest=manifest, unused=tuple(sorted(name for name in unused[n] if not is_shared(name))))
            for n, manifest in manifests.items()
        }

    def adopt(self, work: Round, rebuilt: Mapping[int, Rebuilt], records: Mapping[str, Ref]) -> None:
        """What a round has committed, under these records, is what there is now."""
        for number, each in rebuilt.items():
            self._parts[number].original = Original.of(each.manifest, records[each.manifest.checkpoint])
        for key, became in work.moved.items():
            holdings = self._parts[work.cohort_of[key]].holdings
            held = holdings.pop(key)
            living = next((placed for placed in became if not placed.chunk.segments), None)
            held.replaced.clear()
            held.alive = living.chunk.rows if living else 0
            if living:
                held.key, held.through = living.key, living.chunk.through
                holdings[living.key] = held


def stored_ids(fetcher: Fetcher, placed: Placed) -> Ids:
    """The rows of a chunk, as its bundle has them."""
    chunk = placed.chunk
    length = chunk.rows * id_bytes(chunk.ids)
    data = fetcher.chunk(placed.bundle, chunk.place, 0, length) if length else memoryview(b"")
    return checked_ids(chunk, data, name=placed.bundle.name)


def _holding(number: int, part: TablePart, placed: Placed, arranged: int) -> Holding:
    """A chunk as cohort ``number`` holds it, arranged by the first ``arranged`` of the checkpoints after its own."""
    chunk = placed.chunk
    return Holding(
        table=part.spec.name,
        cohort=number,
        key=placed.key,
        alive=chunk.visible(arranged),
        record_bytes=record_bytes(part.spec.columns, chunk.codec) + id_bytes(chunk.ids),
        first=chunk.first,
        last=chunk.last,
        through=min(chunk.through, arranged),
    )


def _ranges(manifest: Manifest) -> dict[str, tuple[int, int]]:
    return {part.spec.name: (part.start, part.stop) for part in manifest.tables}
