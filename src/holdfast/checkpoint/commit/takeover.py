"""Takes over a run: waits for its current writer, then raises the term."""

from __future__ import annotations

import logging

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import take_over
from holdfast.checkpoint.commit.lease import WRITER, live_leases
from holdfast.printable import printable
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store

logger = logging.getLogger("holdfast")

_POLL_S = 0.1


def await_writers(store: Store, *, timeout_s: float, runtime: Runtime = SYSTEM) -> None:
    """Give a predecessor's agent time to commit what its trainer had sealed; after that the term fences it off."""
    deadline_s = runtime.monotonic_s() + timeout_s
    told = False
    while leases := live_leases(store, WRITER):
        if runtime.monotonic_s() > deadline_s:
            logger.warning(
                "no longer waiting for %s: it is fenced off and can no longer commit", printable(leases[0].holder)
            )
            return
        if not told:
            logger.warning("waiting for %s to finish the checkpoint it is writing", printable(leases[0].holder))
            told = True
        runtime.sleep(_POLL_S)


def claim(chain: Chain) -> Head:
    """Raise the run's term; creates the run if it is empty. A damaged newest catalog is skipped, and said so.

    Only once an older one was read, and the newest could then still not be: the store works, and it is this catalog.
    """
    head = chain.head(skip_damaged=True)
    if head is not None and head.damaged:
        chain.look_anew()
        head = chain.head(skip_damaged=True)
    if head is not None and head.damaged:
        logger.warning(
            "%s cannot be read; continuing from %s, anything committed after it is no longer reachable",
            head.damaged[0],
            head.ref.name,
        )
    return chain.commit(take_over(), skip_damaged=True)
