"""Rearranges one writer's grid, round by round, between saves: reads, splits, writes, commits.

A round takes the bundles that the rule calls due. It writes the live records of each into a new bundle and appends the
replaced ones to a single bundle for the round. So no bundle ever holds bytes that nothing refers to: what a round has
read can be deleted once it is committed, and what it splits off is never moved again. The round's commit points the
checkpoints to the new records; their contents stay the same. A writer that dies in a round leaves objects that nothing
refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import Clocks, own
from holdfast.checkpoint.grid.cohorts import CohortBundle, Cohorts, RowIds
from holdfast.checkpoint.grid.due import DueBundles
from holdfast.checkpoint.grid.extract import Extractor
from holdfast.checkpoint.grid.outline_writer import Original, OutlineWriter
from holdfast.checkpoint.grid.round import Round
from holdfast.checkpoint.grid.stats import GridStats
from holdfast.checkpoint.read.fetcher import Fetcher, lineage
from holdfast.errors import DamagedData, HoldfastError
from holdfast.format.catalog import Entry, checkpoint_id
from holdfast.format.manifest import Manifest
from holdfast.policy import Grid, Pairs
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import Kind


class Rearranger:
    """Follows one writer's commits and keeps their rows arranged. For one thread."""

    def __init__(
        self, store: Store, chain: Chain, grid: Grid, *, rank: int, term: int, runtime: Runtime = SYSTEM
    ) -> None:
        self._store = store
        self._chain = chain
        self._grid = grid
        self._rank = rank
        self._term = term
        self._runtime = runtime
        self.stats = GridStats()
        self._cohorts = Cohorts(rank=rank)
        self._due = DueBundles(store, self._cohorts, grid.rule, self.stats)
        self._outline_writer = OutlineWriter(store, chain, rank=rank, term=term, runtime=runtime)

    def saved(self, entry: Entry, manifest: Manifest, ids: RowIds) -> None:
        """A checkpoint was committed; ``ids`` are the rows of its chunks."""
        info = entry.info
        follows = bool(self._cohorts) and self._cohorts[-1].checkpoint == info.base
        if info.kind is Kind.INCREMENTAL and follows:
            self._cohorts.append(Original.of(manifest, entry.part_list), (), Fetcher(self._store), ids)
            self._due.saved(loaded=False)
        else:
            self._load(info.id, ids)
            self._due.saved(loaded=True)
        self._count()

    def forget(self) -> None:
        """Begin anew with the next commit."""
        self._cohorts.clear()

    @property
    def is_due(self) -> bool:
        """Whether there is something for a round to do."""
        return bool(self._due) or self._outline_writer.is_due(self._cohorts.originals)

    def round(self) -> bool:
        """Rearrange some of what is due and commit it, or outline what was rearranged; False if nothing was due."""
        chosen = self._due.choose()
        if not chosen:
            return self._outline()
        started_s = self._runtime.monotonic_s()
        work = Round(self._store, self._name(), rank=self._rank)
        try:
            self._write(work, chosen)
            self._commit(work)
        except HoldfastError:
            work.give_up()
            raise
        self._outline_writer.learn(work.directories)
        self._count()
        self.stats.rounds += 1
        self.stats.bundles += len(chosen)
        self.stats.written_bytes += work.written_bytes
        self.stats.seconds += self._runtime.monotonic_s() - started_s
        return True

    def _load(self, checkpoint: str, ids: RowIds) -> None:
        """Start over with the grid that this checkpoint depends on."""
        self._cohorts.clear()
        head = own(self._chain.head(), self._term)
        entries = lineage(head, checkpoint)
        if not any(entry.info.kind is Kind.DIFFERENTIAL for entry in entries):
            self._outline_writer.begin(head, entries[0].info.id)
            self._cohorts.load(entries, Fetcher(self._store), ids)

    def _write(self, work: Round, chosen: Iterable[CohortBundle]) -> None:
        """Put the records of these bundles in their new order."""
        knows_all = not isinstance(self._grid.rule, Pairs)
        fetcher = Fetcher(self._store)
        extractor = Extractor(fetcher, self._cohorts, self.stats, self._runtime, knows_all=knows_all)
        for bundle in chosen:
            with self._remembering_damage(bundle):
                work.add(*extractor.extract(bundle), together=self._grid.concatenate)
        work.finish()

    @contextmanager
    def _remembering_damage(self, bundle: CohortBundle) -> Iterator[None]:
        try:
            yield
        except DamagedData:
            self._cohorts.leave_alone(bundle)
            raise

    def _commit(self, work: Round) -> None:
        clocks = Clocks(wall_s=self._runtime.wall_s, store_s=self._store.now_s)
        rebuilt = self._cohorts.rebuilt(work)
        records = work.commit(self._chain, rebuilt.values(), term=self._term, clocks=clocks)
        self._cohorts.adopt(work, rebuilt, records)

    def _outline(self) -> bool:
        originals = self._cohorts.originals
        if not self._outline_writer.is_due(originals):
            return False
        self.stats.written_bytes += self._outline_writer.write(self._name(), self._cohorts[0].original, originals)
        return True

    def _count(self) -> None:
        self.stats.bytes_above_baseline = self._cohorts.bytes_above_baseline
        self.stats.index_bytes = self._cohorts.index_bytes

    def _name(self) -> str:
        """A new folder name for what is written next."""
        step = int(self._cohorts[-1].checkpoint[1:].partition("-")[0])
        return checkpoint_id(step, self._term, self._runtime.token())
