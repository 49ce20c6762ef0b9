"""Rearranges the grid of one writer, round by round, beside the saves: reads, splits, writes, commits.

A round takes the bundles that the rule calls due. Of each it writes the living records into a bundle of their own and
the replaced ones behind those of the others into one bundle of the round. So no bundle ever holds bytes that nothing
refers to: what a round has read is free once it is committed, and what it splits off is never moved again. The round's
commit lets the checkpoints stand on new records; what they hold stays the same. A writer that dies in a round leaves
objects that nothing refers to.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from holdfast.checkpoint.chain import Chain
from holdfast.checkpoint.changes import Clocks, RecordMoved, own, rearrange
from holdfast.checkpoint.grid.bundles import Moved, Placed, bundle_names, chunks_of, rebuild, replacing_in
from holdfast.checkpoint.grid.index import ChunkKey, Holding, Ids, TableIndex
from holdfast.checkpoint.grid.outlining import Original, Outlining
from holdfast.checkpoint.grid.round import REPLACED, Round
from holdfast.checkpoint.grid.split import Records, add_labels, known_labels, split
from holdfast.checkpoint.grid.stats import GridStats
from holdfast.checkpoint.read import VerifiedReader, lineage
from holdfast.codec.chunk import record_bytes
from holdfast.errors import CheckpointNotFound, DamagedData, HoldfastError, StorageError
from holdfast.format.catalog import Entry, checkpoint_id
from holdfast.format.manifest import Manifest, TablePart
from holdfast.format.rows import chunk_ids, id_bytes
from holdfast.policy import Grid, Pairs
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import Kind

_ROUND_BYTES = 64 * 2**20  # that a round reads, about: what it holds in memory, and how long a save waits for it

RowIds = Mapping[ChunkKey, Ids]
_Source = tuple[int, str]  # a cohort's number and one of its bundles


@dataclass(slots=True, kw_only=True)
class _Cohort:
    """A checkpoint of the grid: what this writer saved of it, as it is arranged now."""

    checkpoint: str
    original: Original
    holdings: dict[ChunkKey, Holding] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        """What its record leads to."""
        return self.original.manifest


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
        self._cohorts: list[_Cohort] = []  # baseline first; empty: nothing to arrange
        self._tables: dict[str, TableIndex] = {}
        self._forced: set[_Source] = set()  # bundles that passed the comparison of pairs
        self._damaged: set[_Source] = set()
        self._outlining = Outlining(store, chain, rank=rank, term=term, runtime=runtime)
        self.stats = GridStats()

    def saved(self, entry: Entry, manifest: Manifest, ids: RowIds) -> None:
        """A checkpoint was committed; ``ids`` are the rows of its chunks."""
        info = entry.info
        if info.kind is Kind.INCREMENTAL and self._cohorts and self._cohorts[-1].checkpoint == info.base:
            self._append(Original.of(manifest, entry.record), (), VerifiedReader(self._store), ids)
        else:
            self._load(info.id, ids)
        if isinstance(self._grid.rule, Pairs):
            self._compare_pairs(self._grid.rule)
        self._count()

    def forget(self) -> None:
        """Begin anew with the next commit."""
        self._cohorts, self._tables = [], {}
        self._forced.clear()

    @property
    def is_due(self) -> bool:
        """Whether there is something for a round to do."""
        return bool(self._due()) or self._outlining.is_due(self._originals())

    def round(self) -> bool:
        """Rearrange some of what is due and commit it, or outline what was rearranged; False if nothing was due."""
        chosen = self._choose()
        if not chosen:
            return self._outline()
        started_s = self._runtime.monotonic_s()
        work = Round(self._store, self._name(), rank=self._rank)
        reader = VerifiedReader(self._store)
        try:
            for source in chosen:
                with self._remembering_damage(source):
                    work.add(*self._extract(source, reader), together=self._grid.concatenate)
            work.finish()
            self._commit(work)
        except HoldfastError:
            if not work.may_count:
                self._give_up(work)
            raise
        self._outlining.learn(work.directories)
        self._count()
        self.stats.rounds += 1
        self.stats.bundles += len(chosen)
        self.stats.written_bytes += work.written_bytes
        self.stats.seconds += self._runtime.monotonic_s() - started_s
        return True

    def _originals(self) -> list[Original]:
        return [cohort.original for cohort in self._cohorts[1:]]

    def _outline(self) -> bool:
        originals = self._originals()
        if not self._outlining.is_due(originals):
            return False
        written = self._outlining.write(self._name(), self._cohorts[0].checkpoint, originals)
        self.stats.written_bytes += written
        return True

    @contextmanager
    def _remembering_damage(self, source: _Source) -> Iterator[None]:
        """A bundle that cannot be read is left as it is from now on: copying it would launder what is wrong with it."""
        try:
            yield
        except DamagedData:
            self._damaged.add(source)
            raise

    def _give_up(self, work: Round) -> None:
        """Delete what a round wrote that nothing can refer to; where even that fails, a later term does it."""
        with suppress(StorageError):
            work.discard()

    # ---- what is there -------------------------------------------------------------------------------------------

    def _load(self, checkpoint: str, ids: RowIds) -> None:
        """Begin anew with the grid that this checkpoint stands on."""
        self._cohorts, self._tables = [], {}
        head = own(self._chain.head(), self._term)
        entries = lineage(head, checkpoint)
        if any(entry.info.kind is Kind.DIFFERENTIAL for entry in entries):
            return
        self._outlining.begin(head, entries[0].info.id)
        reader = VerifiedReader(self._store)
        later = [entry.info.id for entry in entries]
        for entry in entries:
            parts = {part.rank: part for part in reader.parts(entry)}
            ours = parts.get(self._rank)
            if ours is None or not self._same_rows(ours):
                self._cohorts, self._tables = [], {}  # another number of writers: not before the next baseline
                return
            later.pop(0)
            self._append(Original.of(ours, entry.record), later, reader, ids)
        if isinstance(self._grid.rule, Pairs):
            self._forget_pairs(but=len(self._cohorts) - 1)

    def _forget_pairs(self, *, but: int) -> None:
        """Pairs that were compared before are not compared again."""
        for cohort in self._cohorts:
            for held in cohort.holdings.values():
                held.replaced = [(by, lost) for by, lost in held.replaced if by == but]

    def _same_rows(self, manifest: Manifest) -> bool:
        if not self._cohorts:
            return True
        first = {part.spec.name: (part.start, part.stop) for part in self._cohorts[0].manifest.tables}
        return first == {part.spec.name: (part.start, part.stop) for part in manifest.tables}

    def _append(self, original: Original, later: Sequence[str], reader: VerifiedReader, ids: RowIds) -> None:
        """Take in a checkpoint; ``later`` are those that come after it, as far as they are committed already."""
        manifest = original.manifest
        cohort = _Cohort(checkpoint=manifest.checkpoint, original=original)
        number = len(self._cohorts)
        common = replacing_in(manifest, later)
        self._cohorts.append(cohort)
        for part in manifest.tables:
            table = self._tables.setdefault(part.spec.name, TableIndex(part.start, part.stop))
            if part.whole:
                self._restart(table)
                continue
            for placed in chunks_of(manifest, part):
                found = ids.get(placed.key)
                rows = _stored_ids(reader, placed) if found is None else found
                holding = _holding(number, part, placed, common)
                cohort.holdings[placed.key] = holding
                table.add(holding, rows)

    def _restart(self, table: TableIndex) -> None:
        """The table was saved whole: no later checkpoint needs what is older, and nobody arranges it any more."""
        for held in table.holdings:
            self._cohorts[held.cohort].holdings.pop(held.key, None)
        table.restart()

    def _count(self) -> None:
        holdings = [held for cohort in self._cohorts for held in cohort.holdings.values()]
        self.stats.bytes_above_baseline = sum(held.alive * held.record_bytes for held in holdings)
        self.stats.index_bytes = sum(table.nbytes for table in self._tables.values())

    # ---- what to do ----------------------------------------------------------------------------------------------

    def _bundles(self) -> dict[_Source, list[Holding]]:
        """Each cohort's chunks with living records, by the bundle they lie in."""
        bundles: dict[_Source, list[Holding]] = {}
        for cohort in self._cohorts:
            for held in cohort.holdings.values():
                if held.alive and (held.cohort, held.key[0]) not in self._damaged:
                    bundles.setdefault((held.cohort, held.key[0]), []).append(held)
        return bundles

    def _due(self) -> dict[_Source, float]:
        """Bundles that are due, with the share of them that was replaced."""
        due = {}
        for source, held in self._bundles().items():
            dead, alive = _dead_bytes(held), _alive_bytes(held)
            if source in self._forced or self._grid.rule.is_due(dead, alive):
                due[source] = dead / alive
        return due

    def _choose(self) -> list[_Source]:
        """As many of them as a round takes, those with the most replaced records first."""
        due = self._due()
        chosen: list[_Source] = []
        room = _ROUND_BYTES
        for source in sorted(due, key=lambda each: -due[each]):
            number, name = source
            size = next(each.size_bytes for each in self._cohorts[number].manifest.bundles if each.name == name)
            if chosen and size > room:
                break
            chosen.append(source)
            room -= size
        return chosen

    def _compare_pairs(self, rule: Pairs) -> None:
        """Hold the newest checkpoint against every older one; what does not reach the threshold is forgotten."""
        newest = len(self._cohorts) - 1
        added = self._cohorts[newest].holdings.values() if self._cohorts else ()
        for source, held in self._bundles().items():
            if source[0] != newest and not self._passes(rule, source, held, added):
                for each in held:
                    each.replaced = [(by, lost) for by, lost in each.replaced if by != newest]

    def _passes(self, rule: Pairs, source: _Source, held: list[Holding], added: Collection[Holding]) -> bool:
        newest, alive = len(self._cohorts) - 1, _alive_bytes(held)
        lost = {each.key: each.lost_to(newest) for each in held}
        if rule.check_range and not any(_overlap(old, new) for old in held for new in added):
            self.stats.range_skips += 1
            return False
        if rule.check_membership and not rule.is_due(_bytes(held, lost), alive):
            self.stats.membership_skips += 1
            return False
        if rule.check_actual and not rule.is_due(_bytes(held, self._stored(source, lost)), alive):
            self.stats.actual_skips += 1
            return False
        self.stats.extractions += 1
        self._forced.add(source)
        return True

    def _stored(self, source: _Source, lost: Mapping[ChunkKey, Ids]) -> dict[ChunkKey, Ids]:
        """Those of the lost rows that are in the chunks by the ids in the store, not only by the index."""
        reader = VerifiedReader(self._store)
        manifest = self._cohorts[source[0]].manifest
        placed = {each.key: each for part in manifest.tables for each in chunks_of(manifest, part)}
        return {key: ids[np.isin(ids, _stored_ids(reader, placed[key]))] for key, ids in lost.items()}

    # ---- how it is done ------------------------------------------------------------------------------------------

    def _extract(self, source: _Source, reader: VerifiedReader) -> tuple[list[Moved], list[Moved]]:
        """The living and the replaced records of a bundle's chunks; what is read is verified first."""
        number, name = source
        cohort = self._cohorts[number]
        alive: list[Moved] = []
        dead: list[Moved] = []
        for part in cohort.manifest.tables:
            for placed in chunks_of(cohort.manifest, part):
                held = cohort.holdings.get(placed.key)
                if placed.bundle.name != name or held is None or not held.alive:
                    continue
                for records, kind in zip(self._split(cohort, part, placed, held, reader), (alive, dead), strict=True):
                    if records is not None:
                        kind.append(
                            Moved(
                                cohort=number,
                                source=placed.key,
                                spec=part.spec,
                                records=records,
                                codec=placed.chunk.codec,
                                loss=placed.chunk.loss,
                                through=self._through(number),
                            )
                        )
        return alive, dead

    def _split(
        self, cohort: _Cohort, part: TablePart, placed: Placed, held: Holding, reader: VerifiedReader
    ) -> tuple[Records | None, Records | None]:
        chunk = placed.chunk
        started_s = self._runtime.monotonic_s()
        data = reader.chunk(placed.bundle, chunk.place)
        self.stats.read_s += self._runtime.monotonic_s() - started_s
        self.stats.read_bytes += len(data)
        self.stats.rows_moved += chunk.rows
        ids = chunk_ids(chunk.rows, chunk.first, chunk.ids, data)
        known = known_labels(chunk, replacing_in(cohort.manifest, self._later(held.cohort)))
        replaced = [(by - held.cohort - 1, lost) for by, lost in held.replaced]
        labels = add_labels(known, ids, replaced, name=placed.bundle.name)
        return split(part.spec.columns, chunk, data, ids, labels)

    def _later(self, number: int) -> list[str]:
        return [cohort.checkpoint for cohort in self._cohorts[number + 1 :]]

    def _through(self, number: int) -> int:
        """After a round, replacements by so many checkpoints are arranged: all there are, unless pairs were passed."""
        return 0 if isinstance(self._grid.rule, Pairs) else len(self._cohorts) - 1 - number

    def _commit(self, work: Round) -> None:
        manifests = {
            number: rebuild(self._cohorts[number].manifest, work.moved, self._later(number)) for number in work.cohorts
        }
        kept = bundle_names([manifests.get(n, cohort.manifest) for n, cohort in enumerate(self._cohorts)])
        clocks = Clocks(wall_s=self._runtime.wall_s, store_s=self._store.now_s)
        for attempt in itertools.count():
            head = own(self._chain.head(), self._term)
            updates = {}
            for number, manifest in manifests.items():
                cohort = self._cohorts[number]
                entry = head.by_id.get(cohort.checkpoint)
                if entry is None:
                    raise CheckpointNotFound(f"checkpoint {cohort.checkpoint} was dropped while it was rearranged")
                unused = sorted(_private(bundle_names([cohort.manifest]) - kept))
                updates[cohort.checkpoint] = work.put_record(entry, manifest, unused, attempt)
            work.may_count = True  # whatever the store answers from here on, the commit may be there
            try:
                self._chain.commit(rearrange(updates, term=self._term, clocks=clocks))
                break
            except RecordMoved:
                work.may_count = False
        self._adopt(work, {n: Original.of(m, updates[m.checkpoint].after) for n, m in manifests.items()})

    def _adopt(self, work: Round, originals: Mapping[int, Original]) -> None:
        """What a round has committed is what there is now."""
        for number, original in originals.items():
            self._cohorts[number].original = original
        for key, became in work.moved.items():
            cohort = self._cohorts[work.cohort_of[key]]
            held = cohort.holdings.pop(key)
            living = next((placed for placed in became if not placed.chunk.segments), None)
            held.replaced.clear()
            held.alive = living.chunk.rows if living else 0
            if living:
                held.key, held.through = living.key, living.chunk.through
                cohort.holdings[living.key] = held
            self._forced.discard((held.cohort, key[0]))

    def _name(self) -> str:
        step = int(self._cohorts[-1].checkpoint[1:].partition("-")[0])
        return checkpoint_id(step, self._term, self._runtime.token())


def _holding(number: int, part: TablePart, placed: Placed, common: int) -> Holding:
    chunk = placed.chunk
    return Holding(
        table=part.spec.name,
        cohort=number,
        key=placed.key,
        alive=chunk.visible(common),
        record_bytes=record_bytes(part.spec.columns, chunk.codec) + id_bytes(chunk.ids),
        first=chunk.first,
        last=chunk.last,
        through=min(chunk.through, common),
    )


def _stored_ids(reader: VerifiedReader, placed: Placed) -> Ids:
    chunk = placed.chunk
    length = chunk.rows * id_bytes(chunk.ids)
    data = reader.chunk(placed.bundle, chunk.place, 0, length) if length else memoryview(b"")
    return chunk_ids(chunk.rows, chunk.first, chunk.ids, data)


def _bytes(held: Iterable[Holding], rows: Mapping[ChunkKey, Ids]) -> int:
    return sum(len(rows[each.key]) * each.record_bytes for each in held)


def _dead_bytes(held: Iterable[Holding]) -> int:
    return sum(each.dead * each.record_bytes for each in held)


def _alive_bytes(held: Iterable[Holding]) -> int:
    return sum(each.alive * each.record_bytes for each in held)


def _overlap(old: Holding, new: Holding) -> bool:
    return old.table == new.table and old.first <= new.last and new.first <= old.last


def _private(names: Iterable[str]) -> Iterator[str]:
    """Bundles that one cohort alone refers to: all but those of replaced records, which cohorts share."""
    return (name for name in names if not name.rpartition("/")[2].startswith(REPLACED))
