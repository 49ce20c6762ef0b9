"""Opens a run's store and reads its newest catalog, without PyTorch: ``holdfast ls`` must not wait for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.errors import CheckpointNotFound
from holdfast.storage import Store, open_store
from holdfast.storage.retry import RetryingStore

logger = logging.getLogger("holdfast")

_RETRY_S = 60.0  # how long an unreachable store is tried


def open_patiently(url: str | os.PathLike[str] | Store, options: Mapping[str, str] | None = None) -> Store:
    """The store at a URL, which is tried again for a while when it does not answer."""
    store = open_store(url, options=options, patience_s=_RETRY_S) if isinstance(url, str | os.PathLike) else url
    return RetryingStore(store, total_s=_RETRY_S)


def read_head(chain: Chain, url: str, *, told: set[str]) -> Head:
    """The newest readable catalog; raises CheckpointNotFound on an empty run. Warns once of damaged ones (``told``)."""
    head = chain.head(skip_damaged=True)
    if head is None:
        raise CheckpointNotFound(f"{url} holds no run yet (no catalog): check the URL")
    for name in set(head.damaged) - told:
        told.add(name)
        logger.warning("%s cannot be read; showing the run as of %s", name, head.ref.name)
    return head
