"""What some stores can do beyond the six methods of every store: detected by type, never needed for correctness.

A store that wraps another one has all of these and delegates those that the other one has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from holdfast.storage.base import Buffer, ObjectInfo, Store
from holdfast.storage.buffers import as_views

IsLeft = Callable[[ObjectInfo], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first bytes of an object, which may be known only when others of it have been written.

    Attributes:
        size_bytes: How many they are.
        get: Waits for them. May be called again, for another attempt.
    """

    size_bytes: int
    get: Callable[[], Buffer]


class Put(Protocol):
    """Takes an object's name and bytes; when it returns, these may change."""

    def __call__(self, name: str, data: Buffer | Sequence[Buffer], *, head: Head | None = None) -> None:
        """Put an object of these bytes, after those of ``head`` if that is given."""
        ...


class HasFiles(Protocol):
    """Its objects are files of this machine, which some can read faster."""

    def path(self, name: str) -> str | None:
        """The file that an object is; None where it is none."""
        ...


@runtime_checkable
class Remote(Protocol):
    """Says whether reading from it is waiting for the network."""

    @property
    def is_remote(self) -> bool:
        """Whether more concurrent requests are worthwhile."""
        ...


@runtime_checkable
class ListsNames(Protocol):
    """Lists names for less than it takes to look at the objects."""

    def names(self, prefix: str = "", *, after: str = "") -> Iterable[str]:
        """The names that ``list`` gives."""
        ...


@runtime_checkable
class HasCaches(Protocol):
    """A store behind a cache."""

    def forget(self, name: str) -> None:
        """Let the next read of an object come from where it is kept."""
        ...


@runtime_checkable
class KeepsReserve(Protocol):
    """A store that can hold space back for small writes that must succeed."""

    def reserve(self, size_bytes: int) -> None:
        """Hold back this much space. Raises StorageFull."""
        ...

    def release(self) -> int:
        """Give free what was reserved; how much that was."""
        ...


@runtime_checkable
class HasTemporaries(Protocol):
    """Writers that die in a put may leave something there that is no object."""

    def sweep(self) -> None:
        """Remove what has been left for long."""
        ...

    def remove_temporaries(self, is_left: IsLeft) -> None:
        """Remove temporary files that nobody will finish; each is named after the object it was to become."""
        ...


@runtime_checkable
class PutsTogether(Protocol):
    """Makes several objects durable in less time than one after another."""

    def together(self) -> AbstractContextManager[Put]:
        """What ``abilities.together`` says."""
        ...


@contextmanager
def together(store: Store) -> Iterator[Put]:
    """Put objects that are durable when the block has ended, not before.

    Threads may put at the same time. If the block ends with an error, any of the objects may exist.
    """
    if isinstance(store, PutsTogether):
        with store.together() as put:
            yield put
    else:
        yield one_by_one(store)


def one_by_one(store: Store) -> Put:
    """Put objects each of which is durable when its put has returned."""

    def put(name: str, data: Buffer | Sequence[Buffer], *, head: Head | None = None) -> None:
        views = as_views(data)
        store.put(name, views if head is None else [head.get(), *views])

    return put


def path_of(store: Store, name: str) -> str | None:
    """The file that an object is, where the store has files."""
    # Asked per bundle: isinstance of a protocol takes 10 µs.
    return cast(HasFiles, store).path(name) if hasattr(store, "path") else None


def is_remote(store: Store) -> bool:
    """Whether reading from a store is waiting for the network."""
    return isinstance(store, Remote) and store.is_remote


def list_names(store: Store, prefix: str, *, after: str = "") -> list[str]:
    """The names of the objects that ``store.list`` gives."""
    if isinstance(store, ListsNames):
        return list(store.names(prefix, after=after))
    return [info.name for info in store.list(prefix, after=after)]


def forget(store: Store, name: str) -> None:
    """Let the next read of an object pass by caches. A request to an object store does so anyway."""
    if isinstance(store, HasCaches):
        store.forget(name)


def sweep(store: Store) -> None:
    """Remove what writers left long ago that died in a put."""
    if isinstance(store, HasTemporaries):
        store.sweep()


def remove_temporaries(store: Store, is_left: IsLeft) -> None:
    """Remove temporary files that nobody will finish, if the store has any."""
    if isinstance(store, HasTemporaries):
        store.remove_temporaries(is_left)
