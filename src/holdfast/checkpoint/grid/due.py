"""Which bundles of a grid are worth rearranging, by the rule of its policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from holdfast.checkpoint.grid.bundles import chunks_of
from holdfast.checkpoint.grid.cohorts import CohortBundle, Cohorts, stored_ids
from holdfast.checkpoint.grid.index import ChunkKey, Holding, Ids
from holdfast.checkpoint.grid.stats import GridStats
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.policy import Pairs, Rule
from holdfast.storage import Store

_ROUND_BYTES = 64 * 2**20  # that a round reads, about: what it holds in memory, and how long a save waits for it


class DueBundles:
    """Asks the rule of each bundle how much of it was replaced."""

    def __init__(self, store: Store, cohorts: Cohorts, rule: Rule, stats: GridStats) -> None:
        self._cohorts = cohorts
        self._rule = rule
        self._pairs = PairComparison(store, cohorts, rule, stats) if isinstance(rule, Pairs) else None

    def __bool__(self) -> bool:
        return bool(self._shares())

    def saved(self, *, loaded: bool) -> None:
        """The newest cohort has just been committed; ``loaded``: all of them were reread from the store."""
        if self._pairs:
            if loaded:
                self._pairs.forget_older()
            self._pairs.compare_newest()

    def choose(self) -> list[CohortBundle]:
        """As many due bundles as a round takes, those with the most replaced records first."""
        due = self._shares()
        chosen: list[CohortBundle] = []
        room_bytes = _ROUND_BYTES
        for bundle in sorted(due, key=lambda each: -due[each]):
            size_bytes = self._cohorts[bundle.cohort].bundle_bytes(bundle.name)
            if chosen and size_bytes > room_bytes:
                break
            chosen.append(bundle)
            room_bytes -= size_bytes
        return chosen

    def _shares(self) -> dict[CohortBundle, float]:
        """Due bundles, with the share of each that was replaced."""
        passed = self._pairs.passed if self._pairs else ()
        due = {}
        for bundle, held in self._cohorts.bundles().items():
            dead, alive = sum(each.dead_bytes for each in held), _alive_bytes(held)
            if bundle in passed or self._rule.is_due(dead, alive):
                due[bundle] = dead / alive
        return due


class PairComparison:
    """Holds each new checkpoint against every older one (IncrCP, section 4.3): for the rule Pairs alone."""

    def __init__(self, store: Store, cohorts: Cohorts, rule: Pairs, stats: GridStats) -> None:
        self._store = store
        self._cohorts = cohorts
        self._rule = rule
        self._stats = stats
        self.passed: set[CohortBundle] = set()

    def compare_newest(self) -> None:
        """Compare the newest checkpoint with all others; what does not reach the threshold is forgotten."""
        newest, bundles = self._cohorts.newest, self._cohorts.bundles()
        added = self._cohorts[newest].holdings.values() if self._cohorts else ()
        self.passed &= bundles.keys()  # the others were rearranged since
        for bundle, held in bundles.items():
            if bundle.cohort == newest:
                continue
            if self._passes(bundle, held, added):
                self._stats.extractions += 1
                self.passed.add(bundle)
            else:
                for each in held:
                    each.replaced = [(by, lost) for by, lost in each.replaced if by != newest]

    def forget_older(self) -> None:
        """Pairs that were compared before, all but those with the newest checkpoint, are not compared again."""
        self.passed.clear()
        for held in (held for part in self._cohorts for held in part.holdings.values()):
            held.replaced = [(by, lost) for by, lost in held.replaced if by == self._cohorts.newest]

    def _passes(self, bundle: CohortBundle, held: Collection[Holding], added: Collection[Holding]) -> bool:
        rule, alive = self._rule, _alive_bytes(held)
        lost = {each.key: each.lost_to(self._cohorts.newest) for each in held}
        if rule.check_range and not any(_overlap(old, new) for old in held for new in added):
            self._stats.range_skips += 1
            return False
        if rule.check_membership and not rule.is_due(_bytes(held, lost), alive):
            self._stats.membership_skips += 1
            return False
        if rule.check_actual and not rule.is_due(_bytes(held, self._stored(bundle, lost)), alive):
            self._stats.actual_skips += 1
            return False
        return True

    def _stored(self, bundle: CohortBundle, lost: Mapping[ChunkKey, Ids]) -> dict[ChunkKey, Ids]:
        """Those of the lost rows that are in the chunks by the ids in the store, not only by the index."""
        fetcher = Fetcher(self._store)
        manifest = self._cohorts[bundle.cohort].manifest
        placed = {each.key: each for part in manifest.tables for each in chunks_of(manifest, part)}
        return {key: ids[np.isin(ids, stored_ids(fetcher, placed[key]))] for key, ids in lost.items()}


def _alive_bytes(held: Iterable[Holding]) -> int:
    return sum(each.alive_bytes for each in held)


def _bytes(held: Iterable[Holding], rows: Mapping[ChunkKey, Ids]) -> int:
    return sum(len(rows[each.key]) * each.record_bytes for each in held)


def _overlap(old: Holding, new: Holding) -> bool:
    return old.table == new.table and old.first <= new.last and new.first <= old.last
