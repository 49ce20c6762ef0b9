"""Which checkpoint to continue from, and what becomes of those ahead of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import go_back
from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.read.fetcher import find_checkpoint, leased, lineage
from holdfast.checkpoint.trainer.fallback import Fallback
from holdfast.errors import CheckpointNotFound
from holdfast.format.catalog import Entry
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store

T = TypeVar("T")


@contextmanager
def protected(store: Store, chain: Chain, head: Head, *, runtime: Runtime = SYSTEM) -> Iterator[Head]:
    """Keep what the head lists from being deleted by others; gives the head anew, as of the lease."""
    if not head.entries:
        yield head
        return
    with leased(store, lambda: chain.head(skip_damaged=True) or head, lambda now: now.entries, runtime=runtime) as now:
        yield now


def restore_newest(
    chain: Chain, head: Head, step: int | str | None, agreement: Agreement, attempt: Callable[[Head, Entry], T]
) -> T | None:
    """Restore the newest good live checkpoint (or that of ``step``); None where the run holds none.

    What was ahead of the one restored becomes an abandoned timeline, and those of it suspect that could not be read.
    """
    candidates = candidates_of(head, step)
    if not candidates:
        return None
    found = Fallback(agreement, lambda entry: attempt(head, entry)).restore(candidates)
    checkpoint = found.entry.info.id
    if agreement.rank == 0 and (checkpoint != (head.catalog.head or checkpoint) or head.catalog.priority):
        suspects = {entry.info.id for entry in found.failed if is_complete(head, entry)}
        chain.commit(go_back(checkpoint, term=head.catalog.term, store_s=chain.store_s, suspects=suspects))
    return found.restored


def candidates_of(head: Head, step: int | str | None = None) -> list[Entry]:
    """What may be resumed from, best first; with ``step``, which may be an id, from that one on."""
    candidates = [entry for entry in reversed(head.entries) if not entry.info.abandoned]
    if step is None:
        return candidates
    wanted = find_checkpoint(head, step, where="the run")
    if wanted.info.abandoned:
        raise CheckpointNotFound(
            f"checkpoint {wanted.info.id} is on an abandoned timeline; use open_run(...).restore() to read it"
        )
    return candidates[candidates.index(wanted) :]


def is_complete(head: Head, entry: Entry) -> bool:
    """Whether the run lists everything that a checkpoint depends on; otherwise it cannot be kept."""
    try:
        lineage(head, entry.info.id)
    except CheckpointNotFound:
        return False
    return True
