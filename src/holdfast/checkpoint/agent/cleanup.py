"""Deletes expired objects after a commit, and looks for orphans from time to time."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.agent.leftovers import Leftovers
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.collect import collect_catalogs, collect_dropped, collect_orphans
from holdfast.checkpoint.wire.messages import Message, Notice
from holdfast.errors import HoldfastError
from holdfast.format.catalog import LINEAGE_LENGTH
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.reserve import keep_reserve

_ORPHANS_EVERY_S = 600.0
_LOOKS_PER_GRACE = 100  # for what was dropped
_CATALOGS_EVERY_COMMITS = LINEAGE_LENGTH  # old ones make looking for the newest one slow


class Cleanup:
    """Cleans up during one term of a run. A failure costs space, not safety: it is logged, and the next commit retries.

    The leading rank (``leads``) handles what belongs to all ranks; each rank collects its own ``leftovers``, if it may.
    """

    def __init__(
        self,
        store: Store,
        chain: Chain,
        *,
        term: int,
        grace_s: float,
        leads: bool,
        leftovers: Leftovers | None,
        reserve_bytes: int = 0,
        tell: Callable[[Message], None],
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._store = store
        self._chain = chain
        self._term = term
        self._grace_s = grace_s
        self._reserve_bytes = reserve_bytes
        self._leads = leads
        self._leftovers = leftovers
        self._tell = tell
        self._runtime = runtime
        self._dropped_due_s = self._orphans_due_s = float("-inf")
        self._commits = 0

    def after_commit(self) -> None:
        """Delete expired objects."""
        try:
            orphans = self._are_orphans_due()
            if self._leads:
                self._collect(orphans=orphans)
            if orphans and self._leftovers is not None:
                self._leftovers.collect()
        except HoldfastError as error:
            self._tell(Notice(message=f"old objects could not be deleted yet: {error}"))

    def _collect(self, *, orphans: bool) -> None:
        if self._is_dropped_due():
            collect_dropped(self._store, self._chain, term=self._term, grace_s=self._grace_s)
        if self._commits % _CATALOGS_EVERY_COMMITS == 0:
            collect_catalogs(self._store, self._chain, term=self._term)
        self._commits += 1
        if orphans:
            collect_orphans(self._store, self._chain, term=self._term, grace_s=self._grace_s)
        keep_reserve(self._store, self._reserve_bytes)  # it may have been needed

    def _is_dropped_due(self) -> bool:
        """Whether to look through the garbage now: to do so at every commit would cost more the more of it waits."""
        now_s = self._runtime.monotonic_s()
        if now_s < self._dropped_due_s:
            return False
        self._dropped_due_s = now_s + self._grace_s / _LOOKS_PER_GRACE
        return True

    def _are_orphans_due(self) -> bool:
        """Whether to look for them now; if so, not again for a while."""
        now_s = self._runtime.monotonic_s()
        if now_s < self._orphans_due_s:
            return False
        self._orphans_due_s = now_s + max(self._grace_s, _ORPHANS_EVERY_S)
        return True
