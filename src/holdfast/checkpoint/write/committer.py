"""Turns complete parts into a committed checkpoint.

Every writer publishes only its own part; the first to find all parts of the intent commits. The catalogs decide the
race, and losing it to a commit of the same save is success. A writer that died leaves its part missing, and so no
commit. One that gives up cancels the save for all: a save ends the same way for everyone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import Clocks, add_checkpoint, add_priority, own
from holdfast.checkpoint.commit.lease import TTL_S, WRITER, live_leases
from holdfast.checkpoint.commit.second_look import SecondLook
from holdfast.checkpoint.read.part_agreement import JoinedPart, check_parts
from holdfast.errors import DamagedData, ObjectExists, SaveCancelled, SaveFailed
from holdfast.format.catalog import (
    Entry,
    Intent,
    PartList,
    Ref,
    folder_of,
    intent_name,
    object_name,
    part_list_name,
    part_name,
)
from holdfast.format.document import digest
from holdfast.format.manifest import Manifest
from holdfast.policy import Retention
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.types import CheckpointInfo, Kind

T = TypeVar("T")

_POLL_S = 0.05
_MAX_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveTimes:
    """When a save began, by the monotonic clock, and how long training waited for it, as its writer knows."""

    started_s: float
    stall_s: float | None = None


class Committer:
    """Commits the saves of one term."""

    def __init__(
        self,
        store: Store,
        chain: Chain,
        *,
        rank: int,
        retention: Retention,
        branches: bool = False,
        part_timeout_s: float = 1800.0,
        may_come: Callable[[int], bool] = lambda _: False,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """``may_come``: whether a rank is known to be alive, so that its writer may still begin."""
        self._store = store
        self._chain = chain
        self._rank = rank
        self._retention = retention
        self._branches = branches  # a save at an earlier step leaves what came after that step
        self._part_timeout_s = part_timeout_s
        self._may_come = may_come
        self._look = SecondLook(store, runtime)
        self._runtime = runtime

    def publish(self, intent: Intent) -> None:
        """Make the intent known; every writer of the save may do so, with the same bytes."""
        with contextlib.suppress(ObjectExists):
            self._store.put(intent_name(intent.checkpoint), intent.encode(), create=True)

    def commit(
        self,
        intent: Intent,
        manifest: Manifest,
        part: Ref,
        cancelled: Callable[[], bool] = lambda: False,
        times: SaveTimes | None = None,
    ) -> tuple[Entry, Head]:
        """Wait for all parts, then commit; returns the entry, whoever committed it, and the head that holds it."""
        parts = {self._rank: (manifest, part)}
        problem = self._await_parts(intent, parts, cancelled)
        if len(parts) < intent.world and (found := self.committed(intent.checkpoint)):
            return found
        if problem is not None and self.call_off(intent.checkpoint):
            raise SaveFailed(f"checkpoint {intent.checkpoint} {problem}")
        return self._commit(intent, parts, times)

    def call_off(self, checkpoint: str) -> bool:
        """Make sure that nobody commits a save any more; False if a commit has already started.

        A committer creates the part list first. An empty one takes its place: only one of the two can be created.
        """
        name = part_list_name(checkpoint)
        try:
            self._store.put(name, PartList(checkpoint=checkpoint, parts=()).encode(), create=True)
        except ObjectExists:
            return not self._read(name, PartList.decode)[0].parts
        return True

    def resolve(self, checkpoint: str) -> tuple[Entry, Head] | None:
        """The outcome of a save that nobody answers for: committed if its commit had started, otherwise cancelled."""
        if (found := self.committed(checkpoint)) or self.call_off(checkpoint):
            return found
        name = intent_name(checkpoint)
        return self._commit(self._read(name, Intent.decode)[0], {})

    def committed(self, checkpoint: str) -> tuple[Entry, Head] | None:
        """The entry of a checkpoint if the run holds it."""
        head = self._chain.head()
        entry = head.find(checkpoint) if head else None
        return (entry, head) if entry and head else None

    def _commit(
        self, intent: Intent, parts: dict[int, tuple[Manifest, Ref]], times: SaveTimes | None = None
    ) -> tuple[Entry, Head]:
        self._read_new_parts(intent, parts)
        entry = self._entry(intent, parts, times)
        clocks = Clocks(wall_s=self._runtime.wall_s, store_s=self._store.now_s)
        change = (
            add_priority(entry, term=intent.term)
            if intent.kind is Kind.PRIORITY
            else add_checkpoint(
                entry, term=intent.term, retention=self._retention, clocks=clocks, branches=self._branches
            )
        )
        head = self._chain.commit(change)
        return head.find(intent.checkpoint) or entry, head

    def _await_parts(
        self, intent: Intent, parts: dict[int, tuple[Manifest, Ref]], cancelled: Callable[[], bool]
    ) -> str | None:
        """Wait until all parts are there; if that is not worth waiting for any longer, why."""
        started_s = self._runtime.monotonic_s()
        look_s = started_s + 2 * TTL_S  # by then every writer at work has its lease
        pause_s = _POLL_S
        while not cancelled():
            self._read_new_parts(intent, parts)
            if len(parts) == intent.world or self.committed(intent.checkpoint):  # by another, who may go on from there
                return None
            now_s = self._runtime.monotonic_s()
            missing = sorted(set(range(intent.world)) - set(parts))
            if now_s - started_s > self._part_timeout_s:
                return f"was given up: the parts of ranks {missing} did not arrive within {self._part_timeout_s:.0f} s"
            if now_s > look_s:
                look_s = now_s + TTL_S
                if dead := self._dead(intent.checkpoint, missing):
                    return f"was given up: the parts of ranks {dead} are missing, and so are their agents"
            own(self._chain.head(), intent.term)
            self._nap(pause_s, cancelled)
            pause_s = min(pause_s * 1.5, _MAX_POLL_S)
        return "was cancelled"

    def _nap(self, pause_s: float, cancelled: Callable[[], bool]) -> None:
        """A cancellation wakes: whoever asked for it waits, and a whole training with it."""
        while pause_s > 0 and not cancelled():
            self._runtime.sleep(min(pause_s, _POLL_S))
            pause_s -= _POLL_S

    def _dead(self, checkpoint: str, missing: list[int]) -> list[int]:
        """Those of the missing ranks whose agents are not at work on the save; none while a lease cannot be read."""
        leases = live_leases(self._store, WRITER)
        if any(lease.damaged for lease in leases):
            return []
        at_work = {lease.rank for lease in leases if checkpoint in lease.checkpoints}
        return [rank for rank in missing if rank not in at_work and not self._may_come(rank)]

    def _read_new_parts(self, intent: Intent, parts: dict[int, tuple[Manifest, Ref]]) -> None:
        """Read what has arrived; raises SaveFailed if another writer called the save off."""
        if len(parts) == intent.world:
            return
        bundles = object_name(intent.checkpoint, "9")  # there may be many; their names begin with digits
        present = {info.name for info in self._store.list(object_name(intent.checkpoint, ""), after=bundles)}
        for rank in range(intent.world):
            name = part_name(intent.checkpoint, rank)
            if rank not in parts and name in present:
                parts[rank] = self._read(name, Manifest.decode)
        called_off = part_list_name(intent.checkpoint) in present and len(parts) < intent.world
        if called_off and not self.committed(intent.checkpoint):
            raise self._called_off(intent)

    def _entry(self, intent: Intent, parts: dict[int, tuple[Manifest, Ref]], times: SaveTimes | None) -> Entry:
        manifests = [parts[rank][0] for rank in range(intent.world)]
        refs = tuple(parts[rank][1] for rank in range(intent.world))
        wanted = PartList(checkpoint=intent.checkpoint, parts=refs)
        name, part_list = part_list_name(intent.checkpoint), wanted.encode()
        info = CheckpointInfo(
            id=intent.checkpoint,
            step=intent.step,
            term=intent.term,
            kind=intent.kind,
            parent=intent.parent,
            base=intent.base,
            created_s=intent.created_s,
            size_bytes=_own_bytes(manifests) + sum(ref.size_bytes for ref in refs) + len(part_list),
            rows_written=sum(m.rows_written for m in manifests),
            full_bytes=sum(m.full_bytes for m in manifests),
            tag=intent.tag,
            metrics=intent.metrics,
            stall_s=times.stall_s if times else None,
            duration_s=self._runtime.monotonic_s() - times.started_s if times else None,
        )
        entry = Entry(
            info=info,
            part_list=Ref(name=name, size_bytes=len(part_list), digest=digest(part_list)),
            rounds=_other_folders(manifests),
        )
        _require_whole(entry, manifests)
        try:
            self._store.put(name, part_list, create=True)
        except ObjectExists:  # another writer of this save was first: with the same bytes, or to call it off
            if self._read(name, PartList.decode)[0] != wanted:
                raise self._called_off(intent) from None
        return entry

    def _read(self, name: str, decode: Callable[..., T]) -> tuple[T, Ref]:
        """A document of another writer, and how to refer to it."""

        def read() -> tuple[T, Ref]:
            data = self._store.get(name)
            return decode(data, name=name), Ref(name=name, size_bytes=len(data), digest=digest(data))

        return self._look(name, read)

    def _called_off(self, intent: Intent) -> SaveFailed:
        own(self._chain.head(), intent.term)  # if that is why, say so
        return SaveCancelled(f"checkpoint {intent.checkpoint} was cancelled by another of its {intent.world} writers")


def _own_bytes(manifests: list[Manifest]) -> int:
    """The size of the bundles that these parts wrote, without those of earlier checkpoints that they refer to."""
    return sum(b.size_bytes for m in manifests for b in m.bundles if folder_of(b.name) == m.checkpoint)


def _other_folders(manifests: list[Manifest]) -> tuple[str, ...]:
    """Where bundles lie that these parts refer to."""
    return tuple(sorted({folder_of(b.name) for m in manifests for b in m.bundles} - {m.checkpoint for m in manifests}))


def _require_whole(entry: Entry, manifests: list[Manifest]) -> None:
    """Raise SaveFailed unless the parts cover the tables: what cannot be read must not be committed."""
    try:
        check_parts(entry, [JoinedPart.of(manifest) for manifest in manifests])
    except DamagedData as error:
        raise SaveFailed(
            f"checkpoint {entry.info.id} is not committed: its writers do not hold every row of every table once "
            f"({error.what})"
        ) from error
