"""A store that fails on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TypeVar

from holdfast.errors import ObjectNotFound, StorageFull, StorageUnavailable, UnreadableData
from holdfast.storage.abilities import forget, is_remote
from holdfast.storage.base import Buffer, ObjectInfo, Store
from holdfast.storage.buffers import check_complete
from holdfast.testing.power import PowerCut

_T = TypeVar("_T")


class Fault(Enum):
    """What happens to an operation."""

    UNAVAILABLE = "StorageUnavailable instead of the operation"
    UNKNOWN = "the operation is done, then StorageUnavailable all the same"
    FULL = "StorageFull instead of the operation"
    FLIPPED = "one bit of what is read is wrong"
    SHORT = "what is read ends too early, as the store itself would notice for a range"
    MISSING = "ObjectNotFound instead of what is read"
    UNREADABLE = "UnreadableData instead of what is read, as for an error of the disk"
    POWER_CUT = "PowerCut instead of this operation and of every one until revive()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call that reached a FaultyStore; ``kind`` is the method, ``name`` the object or prefix."""

    kind: str
    name: str


class FaultyStore:
    """A Store that passes everything on to another one, except where the plan has a fault for that operation.

    Operations are numbered from 1; a delete of several objects is one operation for each. ``before`` is called ahead
    of every operation, for example to let another writer act in between.
    """

    def __init__(
        self,
        store: Store,
        plan: Mapping[int, Fault] | None = None,
        *,
        before: Callable[[Operation], None] | None = None,
    ) -> None:
        self.plan = dict(plan or {})
        self.before = before
        self.history: list[Operation] = []
        self._store = store
        self._is_off = False
        self._lock = Lock()

    @property
    def operations(self) -> int:
        """How many operations there have been."""
        return len(self.history)

    def revive(self) -> None:
        """Turn the power on again."""
        self._is_off = False

    @property
    def url(self) -> str:
        return self._store.url

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        self._run("put", name, lambda: self._store.put(name, data, create=create))

    def get(self, name: str) -> Buffer:
        return self._run("get", name, lambda: self._store.get(name), garbled)

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Buffer:
        read = lambda: self._store.get_range(name, start, stop, into=into)  # noqa: E731
        found = self._run("get_range", name, read, garbled)
        return check_complete(name, found, start, stop)

    @property
    def is_remote(self) -> bool:
        """Whether that of the store below is; no operation."""
        return is_remote(self._store)

    def forget(self, name: str) -> None:
        """Let the next read of an object come from where it is kept; no operation."""
        forget(self._store, name)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        objects = self._run("list", prefix, lambda: self._store.list(prefix, after=after))
        return (self._powered(info) for info in objects)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._delete_one(name)

    def now_s(self) -> float:
        return self._run("now_s", "", self._store.now_s)

    def _delete_one(self, name: str) -> None:
        self._run("delete", name, lambda: self._store.delete([name]))

    def _run(self, kind: str, name: str, act: Callable[[], _T], garble: Callable[[_T, Fault], _T] | None = None) -> _T:
        operation = Operation(kind=kind, name=name)
        fault = self._count(operation)
        if self.before is not None:
            self.before(operation)
        if fault is Fault.UNAVAILABLE:
            raise StorageUnavailable(f"{self.url}: {kind} of {name} was made to fail")
        if fault is Fault.FULL:
            raise StorageFull(f"{self.url}: {kind} of {name} was made to find no room")
        if fault is Fault.MISSING:
            raise ObjectNotFound(f"{self.url}: {name} was made to be missing")
        if fault is Fault.UNREADABLE:
            raise UnreadableData(name, "was made unreadable")
        result = act()
        if fault is not None and garble is not None:
            result = garble(result, fault)
        if fault is Fault.UNKNOWN:
            raise StorageUnavailable(f"{self.url}: {kind} of {name} was done, but its answer was lost")
        return result

    def _count(self, operation: Operation) -> Fault | None:
        with self._lock:
            self._powered(operation)
            self.history.append(operation)
            fault = self.plan.get(len(self.history))
            self._is_off = fault is Fault.POWER_CUT
            self._powered(operation)
            return fault

    def _powered(self, item: _T) -> _T:
        if self._is_off:
            raise PowerCut(f"the store has no power: {item}")
        return item


def garbled(data: Buffer, fault: Fault) -> Buffer:
    """What a read returns instead of ``data``; the object itself is not changed."""
    found = bytearray(data)
    if fault is Fault.SHORT:
        return found[: len(found) // 2]
    if fault is Fault.FLIPPED and found:
        found[len(found) // 2] ^= 1
    return found if fault is Fault.FLIPPED else data
