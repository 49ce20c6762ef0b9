"""Retries for a store that is temporarily unavailable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from holdfast.errors import ObjectExists, ObjectNotFound, StorageFull, StorageUnavailable
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage.abilities import (
    Head,
    IsLeft,
    KeepsReserve,
    Put,
    forget,
    is_remote,
    list_names,
    path_of,
    remove_temporaries,
    sweep,
    together,
)
from holdfast.storage.base import Buffer, ObjectInfo, Store
from holdfast.storage.buffers import as_views, same_bytes
from holdfast.storage.names import check_prefix

logger = logging.getLogger("holdfast")

_T = TypeVar("_T")
_TELL_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """An operation that has not ended, and since when, by the monotonic clock."""

    what: str
    since_s: float


class RetryingStore:
    """A Store that tries again, with growing random pauses, while another one is unavailable.

    No attempt begins later than ``total_s`` after the first, so an operation takes that long and one attempt at most.
    Long waits are logged. A full store is retried once if ``make_room`` says that it deleted something.

    An attempt that failed may still have created its object. So an exclusive create that finds the object there on a
    later attempt compares: the same bytes count as its own success. Writers that contend for a name must therefore
    put something of their own, such as a commit's id, into the bytes.
    """

    def __init__(
        self,
        store: Store,
        *,
        total_s: float = 300.0,
        first_pause_s: float = 0.1,
        longest_pause_s: float = 15.0,
        make_room: Callable[[], bool] | None = None,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._store = store
        self._total_s = total_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._make_room = make_room
        self._runtime = runtime
        self._lock = Lock()
        self._under_way: list[UnderWay] = []  # oldest first

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def oldest(self) -> UnderWay | None:
        """The operation that has been running longest."""
        with self._lock:
            return self._under_way[0] if self._under_way else None

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        views = as_views(data)

        def attempt(first: bool) -> None:
            try:
                self._store.put(name, views, create=create)
            except ObjectExists:
                if first or not self._holds(name, views):
                    raise

        self._retry(f"put of {name}", attempt)

    @contextmanager
    def together(self) -> Iterator[Put]:
        """Each put is tried again; that all become durable at the end is not, because their bytes may be gone."""
        with together(self._store) as put:

            def patient(name: str, data: Buffer | Sequence[Buffer], *, head: Head | None = None) -> None:
                views = as_views(data)
                self._retry(f"put of {name}", lambda _: put(name, views, head=head))

            yield patient

    def get(self, name: str) -> Buffer:
        return self._retry(f"get of {name}", lambda _: self._store.get(name))

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Buffer:
        return self._retry(f"get of {name}", lambda _: self._store.get_range(name, start, stop, into=into))

    @property
    def is_remote(self) -> bool:
        """Whether reading is waiting for the network."""
        return is_remote(self._store)

    def path(self, name: str) -> str | None:
        """The file that an object is, where the store has files."""
        return path_of(self._store, name)

    def reserve(self, size_bytes: int) -> None:
        """Hold back this much space, if the store can."""
        if isinstance(self._store, KeepsReserve):
            self._store.reserve(size_bytes)

    def release(self) -> int:
        """Give free what was reserved; how much that was."""
        return self._store.release() if isinstance(self._store, KeepsReserve) else 0

    def sweep(self) -> None:
        """Remove what dead writers left, where the store has something of the kind."""
        sweep(self._store)

    def forget(self, name: str) -> None:
        """Let the next read of an object come from where it is kept."""
        forget(self._store, name)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        check_prefix(after)
        return self._list(prefix, after)

    def names(self, prefix: str = "", *, after: str = "") -> Iterable[str]:
        """The names that ``list`` gives."""
        return self._retry(f"list of {prefix!r}", lambda _: list_names(self._store, prefix, after=after))

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        objects: Iterator[ObjectInfo] | None = None

        def following(first: bool) -> ObjectInfo | None:
            nonlocal objects
            if objects is None or not first:
                objects = self._store.list(prefix, after=after)
            return next(objects, None)

        while (info := self._retry(f"list of {prefix!r}", following)) is not None:
            yield info
            after = info.name

    def delete(self, names: Iterable[str]) -> None:
        doomed = list(names)
        self._retry(f"delete of {len(doomed)} objects", lambda _: self._store.delete(doomed))

    def remove_temporaries(self, is_left: IsLeft) -> None:
        """Remove temporary files that nobody will finish, if the store has any."""
        self._retry("removal of temporaries", lambda _: remove_temporaries(self._store, is_left))

    def now_s(self) -> float:
        return self._retry("reading of the clock", lambda _: self._store.now_s())

    def _holds(self, name: str, views: Sequence[memoryview]) -> bool:
        try:
            return same_bytes(self._store.get(name), views)
        except ObjectNotFound:
            return False

    def _retry(self, what: str, attempt: Callable[[bool], _T]) -> _T:
        pause_s = self._first_pause_s
        attempts = 0
        may_make_room = self._make_room is not None
        with self._counted(what) as operation:
            told_s = operation.since_s
            while True:
                attempts += 1
                try:
                    return attempt(attempts == 1)
                except StorageFull:
                    if not (may_make_room and self._make_room and self._make_room()):
                        raise
                    may_make_room = False
                    continue
                except StorageUnavailable as error:
                    now_s = self._runtime.monotonic_s()
                    failed = f"{self.url}: {what} failed {attempts} times in {now_s - operation.since_s:.1f} s"
                    if now_s - operation.since_s + pause_s > self._total_s:
                        raise StorageUnavailable(f"{failed}; the last time: {error}") from error
                    if now_s - told_s >= _TELL_EVERY_S:
                        told_s = now_s
                        logger.warning("%s; it will be retried for up to %.0f s; %s", failed, self._total_s, error)
                self._runtime.sleep(pause_s * (0.5 + 0.5 * self._chance()))
                pause_s = min(2 * pause_s, self._longest_pause_s)

    @contextmanager
    def _counted(self, what: str) -> Iterator[UnderWay]:
        operation = UnderWay(what=what, since_s=self._runtime.monotonic_s())
        with self._lock:
            self._under_way.append(operation)
        try:
            yield operation
        finally:
            with self._lock:
                self._under_way[:] = [each for each in self._under_way if each is not operation]

    def _chance(self) -> float:
        """Between 0 and 1, different in every process, so that those that failed together do not retry together."""
        return (int(self._runtime.token(), 16) % 1024) / 1024
