"""Extracts records from a bundle, separating live from replaced ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.checkpoint.grid.bundles import Moved, Placed, chunks_of, replacing_in
from holdfast.checkpoint.grid.cohorts import CohortBundle, CohortPart, Cohorts
from holdfast.checkpoint.grid.index import Holding
from holdfast.checkpoint.grid.split import Records, add_labels, known_labels, split
from holdfast.checkpoint.grid.stats import GridStats
from holdfast.checkpoint.read.chunk_ids import checked_ids
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.format.manifest import TablePart
from holdfast.runtime import Runtime


class Extracted(NamedTuple):
    """The records of a bundle's chunks."""

    living: list[Moved]
    replaced: list[Moved]


class _HeldChunk(NamedTuple):
    """A chunk with living records, and what the index knows of it."""

    part: TablePart
    placed: Placed
    held: Holding


class Extractor:
    """Reads and splits bundles for one round.

    ``knows_all``: whether the index still knows everything that later checkpoints replaced, so that a round arranges
    it; under the rule Pairs it forgets what does not reach the threshold.
    """

    def __init__(
        self, fetcher: Fetcher, cohorts: Cohorts, stats: GridStats, runtime: Runtime, *, knows_all: bool
    ) -> None:
        self._fetcher = fetcher
        self._cohorts = cohorts
        self._stats = stats
        self._runtime = runtime
        self._knows_all = knows_all

    def extract(self, bundle: CohortBundle) -> Extracted:
        """The live and the replaced records of a bundle's chunks, verified."""
        cohort = self._cohorts[bundle.cohort]
        found = Extracted([], [])
        for chunk in _chunks(cohort, bundle.name):
            for records, moved in zip(self._split(cohort, chunk), found, strict=True):
                if records is not None:
                    moved.append(self._moved(chunk, records))
        return found

    def _split(self, cohort: CohortPart, each: _HeldChunk) -> tuple[Records | None, Records | None]:
        chunk, held = each.placed.chunk, each.held
        data = self._read(each.placed)
        ids = checked_ids(chunk, data, name=each.placed.bundle.name)
        known = known_labels(chunk, replacing_in(cohort.manifest, self._cohorts.later(held.cohort)))
        replaced = [(by - held.cohort - 1, lost) for by, lost in held.replaced]
        labels = add_labels(known, ids, replaced, name=each.placed.bundle.name)
        return split(each.part.spec.columns, chunk, data, ids, labels)

    def _read(self, placed: Placed) -> memoryview:
        started_s = self._runtime.monotonic_s()
        data = self._fetcher.chunk(placed.bundle, placed.chunk.place)
        self._stats.read_s += self._runtime.monotonic_s() - started_s
        self._stats.read_bytes += len(data)
        self._stats.rows_moved += placed.chunk.rows
        return data

    def _moved(self, each: _HeldChunk, records: Records) -> Moved:
        chunk, cohort = each.placed.chunk, each.held.cohort
        return Moved(
            cohort=cohort,
            source=each.placed.key,
            spec=each.part.spec,
            records=records,
            codec=chunk.codec,
            loss=chunk.loss,
            through=self._cohorts.newest - cohort if self._knows_all else 0,
        )


def _chunks(cohort: CohortPart, bundle: str) -> Iterator[_HeldChunk]:
    """A cohort's chunks in a bundle."""
    for part in cohort.manifest.tables:
        for placed in chunks_of(cohort.manifest, part):
            held = cohort.holdings.get(placed.key)
            if placed.bundle.name == bundle and held is not None and held.alive:
                yield _HeldChunk(part, placed, held)
