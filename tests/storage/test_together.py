"""Objects put together: durable and named when the block has ended, and nothing left of them when it failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError, StorageFull, StorageUnavailable
from holdfast.storage import LocalStore, MemoryStore, Store
from holdfast.storage.abilities import Head, together
from holdfast.storage.retry import RetryingStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.faults import Fault, FaultyStore
from holdfast.testing.power import PowerCut

ROOT = "/data/run"
MANY = 150  # more files than a batch keeps open
HEADED = "c"  # the object whose first bytes come last
CONTENT = {"dir/a": b"first", "dir/deep/b": b"second", "c": b"third"}


def found(store: Store) -> dict[str, bytes]:
    return {info.name: bytes(store.get(info.name)) for info in store.list()}


def put_all(store: Store, content: dict[str, bytes]) -> None:
    with together(store) as put:
        for name, data in content.items():
            if name == HEADED:
                put(name, data[2:], head=Head(size_bytes=2, get=partial(bytes, data[:2])))
            else:
                put(name, [data[:2], data[2:]])


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: LocalStore(folder),
        lambda folder: RetryingStore(LocalStore(folder)),
        lambda folder: MemoryStore(),
        lambda folder: FaultyStore(LocalStore(folder)),
    ],
    ids=["local", "retrying", "memory", "faulty"],
)
def test_every_store_has_them_in_the_end(tmp_path: Path, make: object) -> None:
    assert callable(make)
    store: Store = make(tmp_path)
    put_all(store, CONTENT)
    assert found(store) == CONTENT


def test_many_objects_of_several_threads_leave_no_file_open(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    content = {f"data/{number}": str(number).encode() * 1000 for number in range(MANY)}
    open_before = len(os.listdir("/proc/self/fd"))
    with together(store) as put, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: put(*item), content.items()))
        assert len(os.listdir("/proc/self/fd")) - open_before < 100
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert found(store) == content
    assert not list(tmp_path.rglob("*~*"))


def test_bytes_may_change_once_they_were_taken(tmp_path: Path) -> None:
    store, data = LocalStore(tmp_path), bytearray(b"before")
    with together(store) as put:
        put("object", data)
        data[:] = b"behind"
    assert found(store) == {"object": b"before"}


def test_head_is_asked_for_when_the_rest_is_written(tmp_path: Path) -> None:
    body = bytes(range(256)) * 8192  # so much that it goes around the page cache

    def head() -> bytes:
        (temporary,) = tmp_path.iterdir()
        assert temporary.read_bytes() == bytes(4096) + body
        return b"h" * 4096

    store = LocalStore(tmp_path)
    with together(store) as put:
        put("object", body, head=Head(size_bytes=4096, get=head))
    assert found(store) == {"object": b"h" * 4096 + body}


def test_head_is_asked_for_again_by_another_attempt() -> None:
    asked: list[None] = []
    head = Head(size_bytes=4, get=lambda: asked.append(None) or b"head")
    disk = FailingDisk("write", 2, errno.ENOSPC)
    store = RetryingStore(LocalStore(ROOT, disk), make_room=lambda: True)
    with together(store) as put:
        put("object", b"body", head=head)
    assert found(store) == {"object": b"headbody"}
    assert len(asked) == 2


def test_head_that_never_comes_fails_the_put_and_leaves_nothing(tmp_path: Path) -> None:
    def head() -> bytes:
        raise KeyError

    with pytest.raises(KeyError), together(LocalStore(tmp_path)) as put:
        put("object", b"body", head=Head(size_bytes=4, get=head))
    assert not list(tmp_path.iterdir())


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with together(store) as put:
        put("object", b"content")
        assert found(store) == {}


@pytest.mark.parametrize("tear", [False, True])
def test_a_cut_before_any_operation_leaves_complete_objects_and_all_of_them_at_the_end(tear: bool) -> None:
    disk = SimulatedDisk()
    put_all(LocalStore(ROOT, disk), CONTENT)
    last = disk.operations
    for operation in range(1, last + 2):
        disk = SimulatedDisk()
        disk.crash_at(operation, tear=tear)
        try:
            put_all(LocalStore(ROOT, disk), CONTENT)
        except PowerCut:
            pass
        else:
            assert operation > last
        disk.reboot(lose_unsynced=True)
        left = found(LocalStore(ROOT, disk))
        assert left.items() <= CONTENT.items(), disk.history[operation - 1]
        assert operation <= last or left == CONTENT


def test_error_in_the_block_takes_back_what_was_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(KeyError), together(store) as put:
        put("dir/object", b"content")
        raise KeyError
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class FailingDisk(SimulatedDisk):
    """One operation fails, the ``at``-th of its kind."""

    def __init__(self, kind: str, at: int, number: int) -> None:
        super().__init__()
        self._kind, self._left, self._number = kind, at, number

    def _count(self, kind: str) -> None:
        self._left -= kind == self._kind
        if self._left == 0 and kind == self._kind:
            raise OSError(self._number, os.strerror(self._number))

    def write(self, handle: int, views: Sequence[memoryview], start: int = 0) -> None:
        self._count("write")
        super().write(handle, views, start)

    def sync(self, handle: int) -> None:
        self._count("sync")
        super().sync(handle)


def test_file_that_cannot_be_made_durable_fails_the_block_and_leaves_nothing_behind() -> None:
    disk = FailingDisk("sync", 2, errno.EIO)
    with pytest.raises(StorageUnavailable, match="dir/deep/b: the disk reported an error"):
        put_all(LocalStore(ROOT, disk), CONTENT)
    assert not [path for path, content in disk.contents().items() if content is not None]


def test_objects_that_were_lost_on_the_way_fail_the_block_though_each_put_is_retried() -> None:
    disk = FailingDisk("sync", 3, errno.EIO)
    store = RetryingStore(LocalStore(ROOT, disk))
    with pytest.raises(StorageUnavailable, match="data/2: the disk reported an error"):
        put_all(store, {f"data/{number}": b"content" for number in range(MANY)})
    assert found(store) == {}


def test_put_that_found_the_disk_full_is_tried_again_when_there_is_room() -> None:
    disk = FailingDisk("write", 2, errno.ENOSPC)
    store = RetryingStore(LocalStore(ROOT, disk), make_room=lambda: True)
    put_all(store, CONTENT)
    assert found(store) == CONTENT


def test_full_disk_is_told_at_once() -> None:
    disk = FailingDisk("write", 2, errno.ENOSPC)
    with pytest.raises(StorageFull, match="dir/deep/b: the disk is full"):
        put_all(LocalStore(ROOT, disk), CONTENT)
    assert not [path for path, content in disk.contents().items() if content is not None]


def test_store_that_is_away_for_a_moment_is_waited_for() -> None:
    store = RetryingStore(FaultyStore(MemoryStore(), {2: Fault.UNAVAILABLE}), first_pause_s=0.0)
    put_all(store, CONTENT)
    assert found(store) == CONTENT


def test_bad_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError), together(LocalStore(tmp_path)) as put:
        put("../outside", b"")
