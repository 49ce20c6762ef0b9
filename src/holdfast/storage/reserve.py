"""Space that a store holds back, so that small writes that must succeed do so when it is full.

A commit that drops checkpoints and a lease need some kilobytes. Without them a full disk could not even be pruned. A
store that is full in another way, such as by a bucket quota, has no reserve, and nothing here has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holdfast.errors import StorageError, StorageFull
from holdfast.storage.abilities import KeepsReserve
from holdfast.storage.base import Buffer, Store

RESERVE_BYTES = 1 << 20
LEAST_RESERVE_BYTES = 1 << 16  # less would not hold a catalog and its pages


def keep_reserve(store: Store, size_bytes: int) -> None:
    """Let a store hold back this much space, or as much as there is; none if it cannot be written."""
    with suppress(StorageError):
        while isinstance(store, KeepsReserve) and size_bytes >= LEAST_RESERVE_BYTES:
            try:
                return store.reserve(size_bytes)
            except StorageFull:
                size_bytes //= 2


@contextmanager
def released_reserve(store: Store) -> Iterator[bool]:
    """Release the reserve, and rebuild it afterwards from what is left; whether there was any."""
    size_bytes = store.release() if isinstance(store, KeepsReserve) else 0
    try:
        yield size_bytes > 0
    finally:
        keep_reserve(store, size_bytes)


def put_small(store: Store, name: str, data: Buffer, *, create: bool = False) -> None:
    """Put something small that must get through, on a full store in the room that it kept."""
    try:
        store.put(name, data, create=create)
    except StorageFull:
        with released_reserve(store) as there_is_room:
            if not there_is_room:
                raise
            store.put(name, data, create=create)
