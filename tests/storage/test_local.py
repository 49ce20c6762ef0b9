from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.errors import (
    AccessDenied,
    ConfigurationError,
    HoldfastError,
    StorageFull,
    StorageUnavailable,
    UnreadableData,
)
from holdfast.storage import Buffer, LocalStore, MemoryStore, Store
from holdfast.storage.abilities import forget
from holdfast.storage.files import PosixFiles
from holdfast.storage.retry import RetryingStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.store_suite import StoreSuite


class TestLocalStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "not" / "yet" / "there")


class TestLocalStoreOnSimulatedDisk(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return LocalStore("/data/run", SimulatedDisk())


class RefusingFiles(PosixFiles):
    """A filesystem on which one call fails."""

    def __init__(self, call: str, number: int) -> None:
        self._call, self._number = call, number

    def _refuse(self, call: str) -> None:
        if call == self._call:
            raise OSError(self._number, os.strerror(self._number))

    def write(self, handle: int, views: Sequence[memoryview], start: int = 0) -> None:
        super().write(handle, views, start)
        self._refuse("write")

    def sync(self, handle: int) -> None:
        self._refuse("sync")

    def link(self, source: str, target: str) -> None:
        self._refuse("link")
        super().link(source, target)


@pytest.mark.parametrize(
    ("call", "number", "expected", "remedy"),
    [
        ("write", errno.ENOSPC, StorageFull, "free some space"),
        ("write", errno.EDQUOT, StorageFull, "quota"),
        ("sync", errno.EIO, StorageUnavailable, "system log"),
        ("sync", errno.ENOSPC, StorageFull, "free some space"),
        ("link", errno.EPERM, ConfigurationError, "hard links"),
        ("link", errno.EOPNOTSUPP, ConfigurationError, "hard links"),
        ("link", errno.EXDEV, ConfigurationError, "another filesystem"),
        ("link", errno.EROFS, AccessDenied, "read-only"),
    ],
)
def test_a_failing_disk_is_explained_and_leaves_nothing_behind(
    tmp_path: Path, call: str, number: int, expected: type[HoldfastError], remedy: str
) -> None:
    store = LocalStore(tmp_path, RefusingFiles(call, number))
    with pytest.raises(expected, match=remedy) as caught:
        store.put("dir/object", b"content", create=True)
    assert str(tmp_path / "dir" / "object") in str(caught.value)
    assert list((tmp_path / "dir").iterdir()) == []


class UnreadableFiles(PosixFiles):
    """A filesystem that gives an error in place of bytes, but finds files."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.forgotten: list[str] = []

    def read(self, path: str, start: int, stop: int | None, into: memoryview | None = None) -> Buffer:
        raise OSError(self._number, os.strerror(self._number), path)

    def forget(self, path: str) -> None:
        super().forget(path)
        self.forgotten.append(path)


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.EUCLEAN])
def test_what_the_disk_cannot_read_is_damage_of_that_object_and_no_outage(tmp_path: Path, number: int) -> None:
    files = UnreadableFiles(number)
    store = LocalStore(tmp_path, files)
    store.put("dir/object", b"content")
    for read in (lambda: store.get("dir/object"), lambda: store.get_range("dir/object", 1, 3)):
        with pytest.raises(UnreadableData, match="system log") as caught:
            read()
        assert caught.value.object_name == "dir/object"


def test_what_is_cached_of_a_file_can_be_forgotten(tmp_path: Path) -> None:
    files = UnreadableFiles(errno.EIO)
    store = RetryingStore(LocalStore(tmp_path, files))
    store.put("object", b"content")
    forget(store, "object")
    forget(store, "missing")
    forget(MemoryStore(), "object")
    assert files.forgotten == [str(tmp_path / "object")]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_forbidden_directory_is_access_denied(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(AccessDenied, match="permission"):
        LocalStore(tmp_path).put("object", b"content")


def test_a_name_that_is_file_and_directory_at_once_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"content")
    with pytest.raises(ConfigurationError, match="directory"):
        store.put("a/b/c", b"below an object")
    with pytest.raises(ConfigurationError, match="directory"):
        store.put("a", b"above an object")


def test_a_name_too_long_for_the_filesystem_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        LocalStore(tmp_path).put("x" * 300, b"content")


def test_files_of_others_are_not_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("object", b"content")
    (tmp_path / "object~0123abcd").write_bytes(b"half a tempora")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "lost+found" / "file").write_bytes(b"")
    assert [info.name for info in store.list()] == ["object"]


def test_leftovers_of_dead_writers_go_when_the_next_one_writes() -> None:
    disk = SimulatedDisk()
    LocalStore("/run", disk).put("bundles/first/x", b"")
    for path in ("/run/bundles/first/y~dead", "/run/z~dead"):
        disk.close(disk.create(path))
    disk.now_s = 3599.0
    LocalStore("/run", disk).put("object", b"")
    assert {entry.name for entry in disk.scan("/run")} == {"bundles", "object", "z~dead"}
    LocalStore("/run", disk).delete(["bundles/first/x"])
    disk.now_s = 3601.0
    LocalStore("/run", disk).put("object", b"")
    assert {entry.name for entry in disk.scan("/run")} == {"object"}


def test_a_delete_takes_empty_directories_along(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in ("a/b/c/one", "a/b/c/two", "a/three"):
        store.put(name, b"")
    store.delete(["a/b/c/one"])
    assert (tmp_path / "a/b/c").exists()
    store.delete(["a/b/c/two"])
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["three"]
    store.delete(["a/three"])
    assert list(tmp_path.iterdir()) == []


def test_a_listing_reads_only_the_directories_it_needs() -> None:
    disk = SimulatedDisk()
    store = LocalStore("/run", disk)
    for name in ("bundles/1/x", "bundles/2/x", "bundles/3/x", "catalogs/1"):
        store.put(name, b"")

    def scanned(prefix: str, after: str = "") -> list[str]:
        start = disk.operations
        list(store.list(prefix, after=after))
        return [line.removeprefix("scan /run/") for line in disk.history[start:] if line.startswith("scan")]

    assert scanned("catalogs/") == ["catalogs/"]
    assert scanned("bundles/2/") == ["bundles/2/"]
    assert scanned("bundles/", after="bundles/2/w") == ["bundles/", "bundles/2/", "bundles/3/"]
    assert scanned("nothing/here/") == ["nothing/here/"]


@pytest.mark.parametrize("directory", ["disk", "tmpfs"])
def test_large_aligned_buffers_arrive_whole_wherever_they_begin(tmp_path: Path, directory: str) -> None:
    root = tmp_path if directory == "disk" else Path("/dev/shm") / tmp_path.name
    memory = mmap.mmap(-1, 5 << 20)
    memory[:] = bytes(range(256)) * (len(memory) // 256)
    whole = memoryview(memory)
    store = LocalStore(root)
    layouts: list[list[Buffer]] = [
        [whole],  # all blocks
        [whole[: (2 << 20) + 5], whole[(2 << 20) + 5 :]],  # a tail, then nothing aligned
        [b"x" * 4096, whole],  # aligned behind a small buffer
        [b"xyz", whole, b"end"],  # nothing aligned in the file
        [whole[: 2 << 20], whole[2 << 20 :].toreadonly(), b"end"],  # direct twice
        [whole[1:]],  # nothing aligned in memory
    ]
    try:
        for number, parts in enumerate(layouts):
            store.put(f"object-{number}", parts)
            assert bytes(store.get(f"object-{number}")) == b"".join(parts)
    finally:
        store.delete([info.name for info in store.list()])
        root.rmdir()
