"""Room that is kept back for when a disk is full."""

from __future__ import annotations

import pytest

from holdfast.errors import StorageFull
from holdfast.storage import LocalStore, MemoryStore
from holdfast.storage.reserve import LEAST_RESERVE_BYTES, keep_reserve, put_small, released_reserve
from holdfast.storage.retry import RetryingStore
from holdfast.testing.disk import SimulatedDisk

SIZE_BYTES = 4 * LEAST_RESERVE_BYTES


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store(disk: SimulatedDisk) -> RetryingStore:
    store = RetryingStore(LocalStore("/run", disk), total_s=0.0)
    store.put("object", b"content")
    keep_reserve(store, SIZE_BYTES)
    disk.capacity_bytes = disk.used_bytes
    return store


def reserved_bytes(disk: SimulatedDisk) -> int:
    return len(disk.contents().get("/run/reserve+") or b"")


def test_it_is_no_object_and_takes_room(disk: SimulatedDisk, store: RetryingStore) -> None:
    assert [info.name for info in store.list()] == ["object"]
    assert reserved_bytes(disk) == SIZE_BYTES
    with pytest.raises(StorageFull):
        store.put("other", b"x")


def test_what_must_get_through_gets_through_and_the_rest_is_kept(disk: SimulatedDisk, store: RetryingStore) -> None:
    for number in range(3):
        put_small(store, f"small-{number}", b"x" * 100, create=True)
    assert reserved_bytes(disk) == SIZE_BYTES // 2
    assert len(list(store.list("small"))) == 3


def test_it_grows_back_when_there_is_room_again(disk: SimulatedDisk, store: RetryingStore) -> None:
    put_small(store, "small", b"x")
    disk.capacity_bytes = None
    keep_reserve(store, SIZE_BYTES)
    assert reserved_bytes(disk) == SIZE_BYTES
    with released_reserve(store) as there_is_room:
        assert there_is_room and reserved_bytes(disk) == 0
    assert reserved_bytes(disk) == SIZE_BYTES


def test_a_store_without_one_is_simply_full(disk: SimulatedDisk, store: RetryingStore) -> None:
    store.release()
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StorageFull):
        put_small(store, "small", b"x")
    keep_reserve(store, SIZE_BYTES)
    assert reserved_bytes(disk) == 0


def test_a_store_that_can_keep_none_works_as_before() -> None:
    store = RetryingStore(MemoryStore(), total_s=0.0)
    keep_reserve(store, SIZE_BYTES)
    with released_reserve(store) as there_is_room:
        assert not there_is_room
    put_small(store, "small", b"x")
    assert [info.name for info in store.list()] == ["small"]
