"""Waits for the other ranks of a job, with warnings and a timeout."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import cast

import torch.distributed as dist
from torch.distributed import distributed_c10d

from holdfast.checkpoint.ranks.patience import Patience
from holdfast.errors import RanksMissing
from holdfast.runtime import SYSTEM, Runtime

logger = logging.getLogger("holdfast")

_TELL_S = 30.0  # between two warnings of one wait
_POLL_S = 0.05
_LISTED = 8
_numbers = itertools.count()  # of the meetings of this process: equal on all ranks that create Checkpointers alike


def meet(timeout_s: float, runtime: Runtime = SYSTEM) -> dist.ProcessGroup:
    """A gloo group of all ranks, once all have come; raises RanksMissing with those that have not."""
    store = distributed_c10d.PrefixStore("holdfast", distributed_c10d._get_default_store())
    number, rank, world = next(_numbers), dist.get_rank(), dist.get_world_size()
    store.set(_key(number, rank), "1")
    try:
        _await(store, number, rank, world, timeout_s, runtime)
    except RanksMissing:
        with suppress(Exception):  # not every store can; who comes later then waits in new_group
            store.delete_key(_key(number, rank))
        raise
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s)))


def wait_for(work: dist.Work, *, rank: int, world: int, timeout_s: float, runtime: Runtime = SYSTEM) -> None:
    """Until a collective is over; raises RanksMissing if the others do not come, or are gone."""
    patience = Patience(rank=rank, world=world, timeout_s=timeout_s, runtime=runtime)
    while True:
        try:
            work.wait(timedelta(seconds=patience.next_s))
            return
        except RuntimeError as error:
            if work.is_completed():
                raise patience.missing(error) from error
            patience.spent(error)


def _await(
    store: distributed_c10d.Store, number: int, rank: int, world: int, timeout_s: float, runtime: Runtime
) -> None:
    started_s, told_s = runtime.monotonic_s(), 0.0
    missing = [other for other in range(world) if other != rank]
    while missing := [other for other in missing if not store.check([_key(number, other)])]:
        waited_s = runtime.monotonic_s() - started_s
        if waited_s >= timeout_s:
            raise RanksMissing(
                f"rank {rank} of {world} created a Checkpointer and waited {waited_s:.0f} s for {_list(missing)}, "
                "which created none: create the Checkpointer on every rank, not only on rank 0 (each saves its share "
                "of the rows). Settings(ranks_s=...) sets how long to wait"
            )
        if waited_s - told_s >= _TELL_S:
            told_s = waited_s
            logger.warning(
                "rank %d of %d has been waiting %.0f s for %s to create a Checkpointer; it gives up after %.0f s. "
                "Create it on every rank",
                rank,
                world,
                waited_s,
                _list(missing),
                timeout_s,
            )
        runtime.sleep(_POLL_S)


def _key(number: int, rank: int) -> str:
    return f"{number}/{rank}"


def _list(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _LISTED} more" if len(ranks) > _LISTED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_LISTED]))}{more}"
