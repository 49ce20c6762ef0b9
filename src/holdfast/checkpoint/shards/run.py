"""A run whose tables are divided over processes: who owns it, and which checkpoint all of them continue from."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import go_back
from holdfast.checkpoint.commit.lease import announce_agent
from holdfast.checkpoint.commit.space import patient_store
from holdfast.checkpoint.commit.takeover import await_writers, claim
from holdfast.checkpoint.ranks.agreement import Alone
from holdfast.checkpoint.read.crew import Progress
from holdfast.checkpoint.read.fetcher import find_checkpoint, leased
from holdfast.checkpoint.shards.loaded import Loaded
from holdfast.checkpoint.shards.loading import ShardLoader
from holdfast.checkpoint.shards.shard import Shard, require_shards
from holdfast.checkpoint.trainer.fallback import Fallback
from holdfast.checkpoint.trainer.newest import candidates_of, is_complete, protected
from holdfast.checkpoint.trainer.policies import RunLocation
from holdfast.checkpoint.trainer.settings import Settings
from holdfast.errors import CheckpointNotFound
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.reserve import keep_reserve
from holdfast.types import CheckpointInfo

_STARTING = 4  # lives of a lease that an agent has to start: on a busy machine it takes long


class ShardedRun:
    """The run at a URL, as a process that holds shards sees it.

    Args:
        url: Where the run is kept, as for a Checkpointer.
        options: Options of an object store's client.
        settings: ``retry_s``, ``grace_s``, ``takeover_s`` and ``reserve_bytes`` count here.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | Store,
        *,
        options: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008 - frozen
        runtime: Runtime = SYSTEM,
    ) -> None:
        self.location = RunLocation(url=url, options=options)
        self.opened = self.location.open(settings.retry_s)
        self.store = patient_store(self.opened, retry_s=settings.retry_s, grace_s=settings.grace_s, runtime=runtime)
        self._settings = settings
        self._runtime = runtime
        self._chain = Chain(self.store, writer=f"pid {os.getpid()}", runtime=runtime)

    # ---- the leader ----------------------------------------------------------------------------------------------

    def take_over(self) -> int:
        """Own the run from now on, and return the term; earlier writers can no longer commit. Once per job.

        A predecessor's agents first get time to commit what was sealed.
        """
        await_writers(self.store, timeout_s=self._settings.takeover_s, runtime=self._runtime)
        head = claim(self._chain)
        keep_reserve(self.store, self._settings.reserve_bytes)
        return head.catalog.term

    def candidates(self, step: int | str | None = None) -> tuple[CheckpointInfo, ...]:
        """The checkpoints that all processes may continue from, the best first; none on an empty run.

        Args:
            step: Begin with that of this step, or id, instead of the newest.
        """
        head = self._chain.head(skip_damaged=True)
        return tuple(entry.info for entry in candidates_of(head, step)) if head is not None else ()

    def go_back(self, checkpoint: str, *, failed: Collection[str] = ()) -> None:
        """All processes have loaded this checkpoint: what was ahead of it, in the run, becomes an abandoned timeline.

        Args:
            checkpoint: Its id.
            failed: The ids of those ahead of it that some process could not load; they become suspect.
        """
        head = self._head()
        if checkpoint == head.catalog.head and not head.catalog.priority:
            return
        suspects = {each for each in failed if each in head.by_id and is_complete(head, head.by_id[each])}
        self._chain.commit(go_back(checkpoint, term=head.catalog.term, store_s=self._chain.store_s, suspects=suspects))

    def announce_agent(self) -> str | None:
        """The lease that keeps others from fencing off what is sealed before the agents are up."""
        holder = f"{socket.gethostname()}:{os.getpid()}, whose agent is being started"
        return announce_agent(self.store, holder, ttl_s=_STARTING * self._settings.lease_s, runtime=self._runtime)

    # ---- every process -------------------------------------------------------------------------------------------

    def load(
        self,
        shards: Sequence[Shard],
        checkpoint: int | str | None = None,
        *,
        state: bool = True,
        progress: Progress | None = None,
    ) -> Loaded:
        """Fill the shards from one checkpoint, whatever process wrote which rows of it.

        Raises DamagedData if it cannot be read. Only without ``checkpoint`` the newest one that can be read is taken:
        where several processes load, all of them must be told the same one.

        Args:
            shards: What to fill.
            checkpoint: Its id or step. None: the newest good one.
            state: Whether to read everything else that it holds as well.
            progress: Called periodically with the bytes read since the last call.
        """
        require_shards(shards)
        loader = ShardLoader(self.store, shards, progress=progress, runtime=self._runtime)
        with protected(self.store, self._chain, self._head(), runtime=self._runtime) as head:
            if checkpoint is not None:
                return loader.load(head, find_checkpoint(head, checkpoint, where=self.store.url), state=state)
            if not (entries := candidates_of(head)):
                raise CheckpointNotFound(f"{self.store.url} holds no checkpoint yet")
            return Fallback(Alone(), lambda entry: loader.load(head, entry, state=state)).restore(entries).restored

    def load_newest(
        self, shards: Sequence[Shard], *, state: bool = False, rows: bool = True, progress: Progress | None = None
    ) -> Loaded:
        """Fill the shards with the newest rows saved, also by priority saves after the last checkpoint.

        For a process that replaces another while the others keep what they have.

        Args:
            shards: What to fill.
            state: Whether to read everything else that the checkpoint holds as well.
            rows: Whether to fill them at all. Without, it is found out what a process builds on that has its rows
                from elsewhere.
            progress: Called periodically with the bytes read since the last call.
        """
        require_shards(shards)
        loader = ShardLoader(self.store, shards, progress=progress, runtime=self._runtime)
        with leased(
            self.store,
            self._head,
            lambda head: (*head.entries, *head.catalog.priority),
            runtime=self._runtime,
        ) as head:
            return loader.load_newest(head, state=state, rows=rows)

    def _head(self) -> Head:
        head = self._chain.head(skip_damaged=True)
        if head is None:
            raise CheckpointNotFound(f"{self.store.url} holds no run")
        return head
