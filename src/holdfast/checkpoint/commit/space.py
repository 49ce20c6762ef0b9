"""Makes room in a full store: deletes now what a later commit would delete, before a save is given up."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable

from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.collect import Collected, collect_catalogs, collect_dropped, collect_orphans
from holdfast.errors import HoldfastError
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.abilities import sweep
from holdfast.storage.reserve import released_reserve
from holdfast.storage.retry import RetryingStore

logger = logging.getLogger("holdfast")


class RoomMaker:
    """Deletes what is no longer needed, as cautiously as any collection: grace periods, leases, suspects.

    Like a prune it is administrative and needs no term. Threads that find the store full at the same time share one
    attempt.
    """

    def __init__(self, store: Store, *, grace_s: float, runtime: Runtime = SYSTEM) -> None:
        self._store = store
        self._grace_s = grace_s
        self._runtime = runtime
        self._lock = threading.Lock()
        self._attempts = 0

    def __call__(self) -> bool:
        """Whether there may be room now."""
        seen = self._attempts
        with self._lock:
            if self._attempts != seen:
                return True  # another thread has been at it meanwhile
            self._attempts += 1
            try:
                with released_reserve(self._store):  # reading the clock and committing need some room themselves
                    collected = self._collect()
            except HoldfastError as error:
                logger.warning("%s is full, and expired objects could not be deleted: %s", self._store.url, error)
                return False
        if collected.objects:
            megabytes = collected.size_bytes / 1e6
            logger.warning(
                "%s is full: deleted %d expired objects, %.1f MB", self._store.url, collected.objects, megabytes
            )
        return collected.objects > 0

    def _collect(self) -> Collected:
        sweep(self._store)
        writer = f"{socket.gethostname()}:{os.getpid()} making room"
        chain = Chain(self._store, writer=writer, runtime=self._runtime)
        head = chain.head()
        if head is None:
            return Collected()
        term = head.catalog.term
        collected = collect_dropped(self._store, chain, term=term, grace_s=self._grace_s)
        collected += collect_orphans(self._store, chain, term=term, grace_s=self._grace_s)
        return collected + collect_catalogs(self._store, chain, term=term)


def patient_store(store: Store, *, retry_s: float, grace_s: float, runtime: Runtime = SYSTEM) -> RetryingStore:
    """The store of a training: it is tried for ``retry_s`` while it is away, and tidied up when it is full."""
    plain = RetryingStore(store, total_s=retry_s, runtime=runtime)
    make_room: Callable[[], bool] = RoomMaker(plain, grace_s=grace_s, runtime=runtime)
    return RetryingStore(store, total_s=retry_s, make_room=make_room, runtime=runtime)
