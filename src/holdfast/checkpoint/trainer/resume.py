"""Brings a live training back to a checkpoint: takes over the run, restores, and sets reader and random state."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.lease import announce_agent
from holdfast.checkpoint.commit.takeover import await_writers, claim
from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import find_checkpoint
from holdfast.checkpoint.restore.division import Slots
from holdfast.checkpoint.restore.model import ModelRestorer, Restored
from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.trainer.newest import protected, restore_newest
from holdfast.checkpoint.trainer.position import Position
from holdfast.checkpoint.training.batches import Reader
from holdfast.checkpoint.training.rng import restore_rng
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.tables import Table
from holdfast.errors import NotResumed, RunError
from holdfast.format.state import RankState
from holdfast.runtime import Runtime
from holdfast.storage import Store
from holdfast.storage.reserve import keep_reserve

logger = logging.getLogger("holdfast")

_STARTING = 4  # lives of a lease that an agent has to start: on a busy machine it takes long


class Resumption:
    """All that a restore changes, on one rank of a job."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        agreement: Agreement,
        *,
        tables: Sequence[Table],
        state: TrainingState,
        tracker: Tracker,
        reader: Reader | None,
        reserve_bytes: int,
        lease_s: float,
        runtime: Runtime,
    ) -> None:
        self._store = store
        self._chain = chain
        self._agreement = agreement
        self._tables = tables
        self._state = state
        self._tracker = tracker
        self._reader = reader
        self._reserve_bytes = reserve_bytes
        self._lease_s = lease_s
        self._runtime = runtime
        self._pending_rng: Mapping[str, Any] | None = None

    def take_over(self, step: int | None = None, *, patience_s: float) -> int:
        """Own the run from now on; the term. That of ``step`` must exist: it is looked for before anybody is fenced.

        ``patience_s`` is how long a predecessor's agent gets to commit what its trainer had sealed.
        """
        if step is not None:
            find_checkpoint(self._chain.head(skip_damaged=True), step, where=self._store.url)
        if self._agreement.rank == 0:
            await_writers(self._store, timeout_s=patience_s, runtime=self._runtime)
        claimed = self._claim().catalog if self._agreement.rank == 0 else None
        return int(self._agreement.broadcast(claimed.term if claimed else None))

    def _claim(self) -> Head:
        head = claim(self._chain)
        keep_reserve(self._store, self._reserve_bytes)
        return head

    def begin(self, *, patience_s: float) -> int:
        """Own a run that holds no checkpoint; the term. Raises NotResumed, on all ranks, if it does by then."""
        newest = self._newest_step(patience_s) if self._agreement.rank == 0 else None
        newest = self._agreement.broadcast(newest)
        if newest is not None:
            raise NotResumed(
                f"{self._store.url} already holds checkpoints (up to step {newest}): call resume() before the first "
                "step, or give this training its own URL"
            )
        return self.take_over(patience_s=0.0)

    def announce_agent(self) -> str | None:
        """The lease that keeps others from fencing off what is sealed before the agent is up. Rank 0's is for all."""
        if self._agreement.rank != 0:
            return None
        holder = f"{socket.gethostname()}:{os.getpid()}, whose agent is being started"
        return announce_agent(self._store, holder, ttl_s=_STARTING * self._lease_s, runtime=self._runtime)

    def _newest_step(self, patience_s: float) -> int | None:
        """Of the checkpoints that are there once nobody is about to commit one."""
        await_writers(self._store, timeout_s=patience_s, runtime=self._runtime)
        head = self._chain.head(skip_damaged=True)
        return head.entries[-1].info.step if head is not None and head.entries else None

    def restore(
        self, step: int | None, *, strict: bool, slots: Slots = Slots.EXACT, progress: Progress | None
    ) -> Restored | None:
        """Read the newest good checkpoint, or that of ``step``, into everything; None where there is none."""
        head = self._chain.head(skip_damaged=True)
        if self._agreement.any(head is None or bool(head.damaged)):  # which the ranks must see alike
            raise RunError(
                f"{self._store.url}: the newest catalog has just disappeared or become unreadable; try again"
            )
        assert head is not None
        restorer = ModelRestorer(self._store, self._tables, self._state, self._tracker, runtime=self._runtime)
        rank = self._agreement.rank
        with protected(self._store, self._chain, head, runtime=self._runtime) as head, self._tracker.suspended():
            return restore_newest(
                self._chain,
                head,
                step,
                self._agreement,
                lambda head, entry: restorer.restore(
                    head, entry, rank=rank, strict=strict, slots=slots, progress=progress
                ),
            )

    def restore_reader(self, rank: RankState) -> None:
        """Put the loader and the random state where the checkpoint left them."""
        if self._reader is not None and rank.reader is not None:
            self._reader.load_state(rank.reader, rank.rng)
        elif self._reader is not None and rank.step:
            logger.warning("the checkpoint holds no reader state for this rank: the loader starts from the beginning")
        self._pending_rng = rank.rng
        self.restore_rng()

    def restore_rng(self) -> None:
        """At resume and again when the loader's iterator exists, because making it draws random numbers."""
        if self._pending_rng is not None:
            restore_rng(self._pending_rng)


def position_of(restored: Restored, term: int) -> Position:
    """Where saving continues after a restore."""
    return Position.restored(restored.info, restored.job, baseline=restored.baseline, term=term)
