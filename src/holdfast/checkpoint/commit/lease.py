"""Leases: how processes that share nothing but the store learn about each other.

A lease is a small object that its holder renews; it is alive while its age, by the store's clock, is below its time to
live. A reader's lease protects the checkpoints it reads from deletion; a writer's lease says that an agent is still
working, so a resuming trainer can wait for the checkpoint that its predecessor had sealed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from holdfast.errors import DamagedData, ObjectNotFound, StorageError
from holdfast.format import fields
from holdfast.format.document import Json, parse, seal, unseal
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import Store
from holdfast.storage.reserve import put_small

PREFIX = "leases/"
READER, WRITER = "reader", "writer"  # what a lease is held for
TTL_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who holds what, and for how long after the last renewal."""

    kind: str  # READER or WRITER
    holder: str
    checkpoints: tuple[str, ...]
    ttl_s: float
    rank: int | None = None  # of a writer: which part of the checkpoint it writes
    damaged: bool = False  # it could not be read: whatever it protects is unknown

    def encode(self) -> bytes:
        """The lease as the bytes of its object."""
        body = {"kind": self.kind, "holder": self.holder, "checkpoints": list(self.checkpoints), "ttl_s": self.ttl_s}
        if self.rank is not None:
            body["rank"] = self.rank
        return seal("lease", 1, body)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, *, name: str) -> Lease:
        """Parse and check the object ``name``."""
        body = unseal("lease", 1, data, name=name)
        return parse(name, lambda: cls._from_json(body))

    @classmethod
    def _from_json(cls, body: Json) -> Lease:
        return cls(
            kind=fields.text(body["kind"], "kind"),
            holder=fields.text(body["holder"], "holder"),
            checkpoints=fields.texts(body["checkpoints"], "checkpoints"),
            ttl_s=fields.real(body["ttl_s"], "ttl_s", least=0.0),
            rank=fields.maybe(fields.integer, body.get("rank"), "rank"),
        )


def live_leases(store: Store, kind: str) -> list[Lease]:
    """The leases of one kind that have not expired. One that cannot be read counts as alive while it is young."""
    found = list(store.list(f"{PREFIX}{kind}-"))
    if not found:
        return []
    now_s = store.now_s()
    leases = []
    for info in found:
        try:
            lease = Lease.decode(store.get(info.name), name=info.name)
        except ObjectNotFound:
            continue
        except DamagedData:
            lease = Lease(kind=kind, holder="unreadable", checkpoints=(), ttl_s=TTL_S, damaged=True)
        if now_s - info.modified_s < lease.ttl_s:
            leases.append(lease)
    return leases


def announce_agent(store: Store, holder: str, *, ttl_s: float, runtime: Runtime = SYSTEM) -> str | None:
    """Say that an agent is being started: what its trainer seals meanwhile is not to be fenced off.

    The name of the lease, which the agent deletes when it has its own, or nothing to do; None where it could not be
    written: then only the protection is missing.
    """
    name = f"{PREFIX}writer-{runtime.token()}{runtime.token()}"
    try:
        store.put(name, Lease(kind=WRITER, holder=holder, checkpoints=(), ttl_s=ttl_s).encode())
    except StorageError:
        return None
    return name


def remove_expired(store: Store, *, age_s: float = 20 * TTL_S) -> None:
    """Delete leases whose holders died long ago."""
    found = list(store.list(PREFIX))
    if found:
        now_s = store.now_s()
        store.delete([info.name for info in found if now_s - info.modified_s > age_s])


class HeldLease:
    """Holds a lease from entry to exit, renewing it on its own thread."""

    def __init__(
        self,
        store: Store,
        kind: str,
        holder: str,
        checkpoints: Sequence[str] = (),
        *,
        ttl_s: float = TTL_S,
        rank: int | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._store = store
        self._name = f"{PREFIX}{kind}-{runtime.token()}{runtime.token()}"
        lease = Lease(kind=kind, holder=holder, checkpoints=tuple(checkpoints), ttl_s=ttl_s, rank=rank)
        self._data = lease.encode()
        self._ttl_s = ttl_s
        self._runtime = runtime
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="holdfast-lease", daemon=True)

    def __enter__(self) -> HeldLease:
        put_small(self._store, self._name, self._data)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        with suppress(StorageError):  # it expires by itself
            self._store.delete([self._name])

    def _renew(self) -> None:
        while not self._runtime.wait(self._done, self._ttl_s / 3):
            try:
                put_small(self._store, self._name, self._data)
            except StorageError:
                continue  # the next renewal may come through in time
