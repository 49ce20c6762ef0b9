from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from holdfast.storage.files import FileSystem, PosixFiles
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.power import PowerCut


def write(disk: FileSystem, path: str, content: bytes, *, sync: bool = False) -> None:
    handle = disk.create(path)
    disk.write(handle, [memoryview(content)])
    if sync:
        disk.sync(handle)
    disk.close(handle)


def names(disk: FileSystem, path: str) -> set[str]:
    return {entry.name for entry in disk.scan(path)}


@pytest.mark.parametrize("synced", ["neither", "file", "directory", "both"])
def test_only_what_was_synced_survives(synced: str) -> None:
    disk = SimulatedDisk()
    write(disk, "/file", b"content", sync=synced in ("file", "both"))
    if synced in ("directory", "both"):
        disk.sync_directory("/")
    disk.reboot(lose_unsynced=True)
    assert names(disk, "/") == ({"file"} if synced in ("directory", "both") else set())
    if synced in ("directory", "both"):
        assert disk.read("/file", 0, None) == (b"content" if synced == "both" else b"")


def test_what_was_not_synced_may_survive_too() -> None:
    disk = SimulatedDisk()
    write(disk, "/file", b"content")
    disk.reboot(lose_unsynced=False)
    assert disk.read("/file", 0, None) == b"content"


def test_an_unsynced_removal_and_an_unsynced_rename_are_undone() -> None:
    disk = SimulatedDisk()
    for name in ("removed", "renamed", "replaced"):
        write(disk, f"/{name}", name.encode(), sync=True)
    disk.sync_directory("/")
    disk.unlink("/removed")
    disk.rename("/renamed", "/replaced")
    disk.reboot(lose_unsynced=True)
    assert {name: disk.read(f"/{name}", 0, None) for name in names(disk, "/")} == {
        "removed": b"removed",
        "renamed": b"renamed",
        "replaced": b"replaced",
    }


def test_a_file_in_a_directory_that_was_lost_is_lost() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/dir")
    write(disk, "/dir/file", b"content", sync=True)
    disk.sync_directory("/dir")
    disk.reboot(lose_unsynced=True)
    assert names(disk, "/") == set()


def test_chance_mixes_what_survives_and_repeats_itself() -> None:
    def survivors(seed: int) -> set[str]:
        disk = SimulatedDisk()
        for number in range(8):
            write(disk, f"/{number}", b"content")
        disk.reboot(chance=Random(seed))
        return {name for name in names(disk, "/") if disk.read(f"/{name}", 0, None)}

    assert survivors(1) == survivors(1)
    assert len({frozenset(survivors(seed)) for seed in range(5)}) > 1


def test_from_the_cut_on_nothing_works_until_the_reboot() -> None:
    disk = SimulatedDisk()
    write(disk, "/file", b"content")
    disk.crash_at(disk.operations + 1)
    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.unlink("/file")
    with pytest.raises(PowerCut):
        disk.scan("/")
    disk.reboot(lose_unsynced=False)
    assert names(disk, "/") == {"file"}


def test_a_torn_write_leaves_half_and_is_not_durable() -> None:
    for lose, expected in ((False, b"cont"), (True, b"")):
        disk = SimulatedDisk()
        handle = disk.create("/file")
        disk.sync_directory("/")
        disk.crash_at(disk.operations + 1, tear=True)
        with pytest.raises(PowerCut):
            disk.write(handle, [memoryview(b"cont"), memoryview(b"ents")])
        disk.reboot(lose_unsynced=lose)
        assert disk.read("/file", 0, None) == expected


@pytest.mark.parametrize("kind", ["simulated", "real"])
def test_it_fails_as_a_real_filesystem_does(tmp_path: Path, kind: str) -> None:
    disk: FileSystem = PosixFiles() if kind == "real" else SimulatedDisk()
    root = str(tmp_path) if kind == "real" else ""
    disk.mkdir(f"{root}/dir")
    disk.mkdir(f"{root}/other")
    write(disk, f"{root}/dir/file", b"content")
    with pytest.raises(FileExistsError):
        disk.create(f"{root}/dir/file")
    with pytest.raises(FileExistsError):
        disk.mkdir(f"{root}/dir")
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/dir/file", f"{root}/dir")
    with pytest.raises(FileNotFoundError):
        disk.create(f"{root}/missing/file")
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{root}/dir/missing")
    with pytest.raises(FileNotFoundError):
        disk.scan(f"{root}/missing")
    with pytest.raises(NotADirectoryError):
        disk.create(f"{root}/dir/file/below")
    with pytest.raises(NotADirectoryError):
        disk.scan(f"{root}/dir/file")
    with pytest.raises(IsADirectoryError):
        disk.rename(f"{root}/dir/file", f"{root}/other")
    with pytest.raises(IsADirectoryError):
        disk.read(f"{root}/dir", 0, 1)
    with pytest.raises(OSError, match="not empty"):
        disk.rmdir(f"{root}/dir")
    assert disk.read(f"{root}/dir/file", 2, 99) == b"ntent"
    assert disk.read(f"{root}/dir/file", 50, 99) == b""
