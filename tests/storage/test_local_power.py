"""The promise of a LocalStore under power cuts: entirely there or not at all, and there once put has returned."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.errors import ObjectExists, StorageUnavailable
from holdfast.storage import LocalStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.power import PowerCut

ROOT = "/data/run"
NAMES = st.sampled_from(["a", "b/c", "b/d", "e/f/g"])
REBOOTS: dict[str, Callable[[SimulatedDisk], None]] = {
    "unsynced-lost": lambda disk: disk.reboot(lose_unsynced=True),
    "unsynced-kept": lambda disk: disk.reboot(lose_unsynced=False),
    "by-chance-1": lambda disk: disk.reboot(chance=Random(1)),
    "by-chance-2": lambda disk: disk.reboot(chance=Random(2)),
    "by-chance-3": lambda disk: disk.reboot(chance=Random(3)),
}


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    store = LocalStore(ROOT, disk)
    return {info.name: bytes(store.get(info.name)) for info in store.list()}


def prepared(before: dict[str, bytes]) -> SimulatedDisk:
    disk = SimulatedDisk()
    for name, content in before.items():
        LocalStore(ROOT, disk).put(name, content)
    return disk


def operations_of(before: dict[str, bytes], create: bool) -> tuple[int, int]:
    disk = prepared(before)
    first = disk.operations + 1
    LocalStore(ROOT, disk).put("dir/object", [b"new ", b"content"], create=create)
    return first, disk.operations


@pytest.mark.parametrize("reboot", REBOOTS)
@pytest.mark.parametrize("tear", [False, True])
@pytest.mark.parametrize(
    ("before", "create"),
    [
        pytest.param({}, True, id="created-in-new-directories"),
        pytest.param({"dir/other": b"other"}, True, id="created"),
        pytest.param({"dir/object": b"old"}, False, id="overwritten"),
    ],
)
def test_a_cut_before_any_operation_of_a_put_leaves_all_or_nothing(
    before: dict[str, bytes], create: bool, tear: bool, reboot: str
) -> None:
    first, last = operations_of(before, create)
    after = {**before, "dir/object": b"new content"}
    for operation in range(first, last + 2):
        disk = prepared(before)
        disk.crash_at(operation, tear=tear)
        returned = False
        try:
            LocalStore(ROOT, disk).put("dir/object", [b"new ", b"content"], create=create)
            returned = True
        except PowerCut:
            pass
        REBOOTS[reboot](disk)
        assert returned == (operation > last)
        assert contents(disk) in ([after] if returned else [before, after]), disk.history[operation - 1]
        LocalStore(ROOT, disk).put("dir/object", b"retried")
        assert contents(disk) == {**after, "dir/object": b"retried"}


class FlakyDisk(SimulatedDisk):
    """The first sync of a directory fails, after which its names are visible and not durable."""

    has_failed = False

    def sync_directory(self, path: str) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        super().sync_directory(path)


def test_who_is_told_that_an_object_exists_can_rely_on_it() -> None:
    disk = FlakyDisk()
    with pytest.raises(StorageUnavailable):
        LocalStore(ROOT, disk).put("dir/object", b"content", create=True)
    with pytest.raises(ObjectExists):
        LocalStore(ROOT, disk).put("dir/object", b"content", create=True)
    disk.reboot(lose_unsynced=True)
    assert contents(disk) == {"dir/object": b"content"}


def test_directories_made_by_another_writer_who_lost_power_there_are_made_durable() -> None:
    disk = SimulatedDisk()
    for path in ("/data", ROOT, f"{ROOT}/dir"):
        disk.mkdir(path)
    LocalStore(ROOT, disk).put("dir/object", b"content", create=True)
    disk.reboot(lose_unsynced=True)
    assert contents(disk) == {"dir/object": b"content"}


class LocalStoreUnderPowerCuts(RuleBasedStateMachine):
    """A LocalStore on a SimulatedDisk against a dictionary, with the power cut anywhere."""

    @initialize()
    def start(self) -> None:
        self.disk = SimulatedDisk()
        self.store = LocalStore(ROOT, self.disk)
        self.objects: dict[str, bytes] = {}
        self.maybe: dict[str, set[bytes | None]] = {}  # what else a cut may make of these
        self.is_off = False

    @precondition(lambda self: not self.is_off)
    @rule(after=st.integers(1, 25), tear=st.booleans())
    def arm(self, after: int, tear: bool) -> None:
        self.disk.crash_at(self.disk.operations + after, tear=tear)

    @precondition(lambda self: not self.is_off)
    @rule(name=NAMES, content=st.binary(max_size=5), create=st.booleans())
    def put(self, name: str, content: bytes, create: bool) -> None:
        try:
            self.store.put(name, content, create=create)
        except ObjectExists:
            assert create
            assert name in self.objects
        except PowerCut:
            self.is_off = True
            self.maybe.setdefault(name, set()).add(content)
        else:
            assert not (create and name in self.objects)
            self.objects[name] = content
            self.maybe.pop(name, None)

    @precondition(lambda self: not self.is_off)
    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.maybe.setdefault(name, set()).add(self.objects.pop(name, None))  # a delete is not durable
        try:
            self.store.delete([name])
        except PowerCut:
            self.is_off = True

    @rule(lose=st.booleans(), seed=st.none() | st.integers(0, 99))
    def reboot(self, lose: bool, seed: int | None) -> None:
        self.disk.reboot(lose_unsynced=lose, chance=None if seed is None else Random(seed))
        found = contents(self.disk)
        for name in {*found, *self.objects, *self.maybe}:
            assert found.get(name) in {self.objects.get(name), *self.maybe.get(name, set())}
        self.store = LocalStore(ROOT, self.disk)
        self.objects, self.maybe, self.is_off = found, {}, False

    @precondition(lambda self: not self.is_off)
    @rule()
    def look(self) -> None:
        try:
            assert contents(self.disk) == self.objects
        except PowerCut:
            self.is_off = True


TestLocalStoreUnderPowerCuts = LocalStoreUnderPowerCuts.TestCase
TestLocalStoreUnderPowerCuts.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
