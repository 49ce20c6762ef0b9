"""Records what a power cut at every moment of a run would leave behind, without running it again for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from typing import Any

from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.runtime import Runtime
from holdfast.storage import Buffer, LocalStore
from holdfast.testing.disk import SimulatedDisk
from holdfast.testing.power import PowerCut

ROOT = "/run"
_CHANGES_NOTHING = ("read", "stat", "scan", "close")
_TIME_OFF_S = 7200.0  # longer than leases live and temporaries may linger

Listed = list[tuple[str, bool]]  # ids of checkpoints, and whether they are abandoned
Reboot = Callable[[SimulatedDisk, int], None]
REBOOTS: dict[str, Reboot] = {
    "unsynced lost": lambda disk, _: disk.reboot(lose_unsynced=True),
    "unsynced kept": lambda disk, _: disk.reboot(lose_unsynced=False),
    "unsynced by chance": lambda disk, operation: disk.reboot(chance=Random(operation)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A power cut: before an operation or in the middle of it, and what comes back with the power."""

    operation: int
    torn: bool
    reboot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What a cut left, and the highest catalog whose put had returned by then."""

    cut: Cut
    what: str
    committed: int
    disk: SimulatedDisk = field(repr=False)


def listed(head: Head | None) -> Listed:
    """What a run shows."""
    return [(entry.info.id, entry.info.abandoned) for entry in head.entries] if head else []


def everything(disk: SimulatedDisk) -> int:
    """Equal for disks that hold the same."""
    return hash(frozenset(disk.contents().items()))


def objects(disk: SimulatedDisk) -> int:
    """Equal for disks that hold the same objects, whatever temporaries and empty directories they hold besides."""
    return hash(frozenset((k, v) for k, v in disk.contents().items() if v is not None and "~" not in k))


class Recorder:
    """A FileSystem that passes everything on to a SimulatedDisk and notes before each operation what a cut would leave.

    Of aftermaths with the same promises that are alike (by ``likeness``) one is kept.
    """

    def __init__(self, disk: SimulatedDisk, reboots: Sequence[str], likeness: Callable[[SimulatedDisk], int]) -> None:
        self.committed = 0
        self.listed: dict[int, Listed] = {0: []}  # by catalog number
        self.aftermaths: dict[tuple[int, int], Aftermath] = {}
        self.left_by: dict[Cut, int] = {}  # of every cut, ``everything`` that it left
        self._disk = disk
        self._reboots = reboots
        self._likeness = likeness
        self._lock = Lock()
        self._unchanged = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operate = getattr(self._disk, name)

        def recorded(*arguments: Any) -> Any:
            with self._lock:
                self._note(name, arguments, torn=False)
                if name in ("write", "sync"):
                    self._note(name, arguments, torn=True)
                self._unchanged = name in _CHANGES_NOTHING
                return operate(*arguments)

        return recorded

    def commit(self, number: int) -> None:
        """The put of a catalog has returned: from now on it must survive."""
        self.committed = number
        self._unchanged = False  # the same disk, but more is promised of it
        self.listed[number] = listed(Chain(LocalStore(ROOT, self._disk.copy())).head())

    def finish(self) -> None:
        """Note what a cut after the last operation leaves."""
        self._note("nothing", ("more",), torn=False)

    def _note(self, kind: str, arguments: tuple[Any, ...], *, torn: bool) -> None:
        operation = self._disk.operations + 1
        for reboot in self._reboots:
            cut = Cut(operation=operation, torn=torn, reboot=reboot)
            before = Cut(operation=operation - 1, torn=False, reboot=reboot)
            if self._unchanged and not torn and "chance" not in reboot:
                self.left_by[cut] = self.left_by[before]
                continue
            image = self._disk.copy()
            if torn:
                _tear(image, kind, arguments)
            REBOOTS[reboot](image, operation)
            image.now_s += _TIME_OFF_S
            found = Aftermath(cut=cut, what=f"{kind} {arguments[0]}", committed=self.committed, disk=image)
            self.left_by[cut] = everything(image)
            self.aftermaths.setdefault((self.committed, self._likeness(image)), found)


class WitnessedStore(LocalStore):
    """A LocalStore on a Recorder that tells it of commits."""

    def __init__(self, recorder: Recorder, runtime: Runtime) -> None:
        super().__init__(ROOT, recorder, runtime)
        self._recorder = recorder

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        super().put(name, data, create=create)
        if name.startswith("catalog/"):
            self._recorder.commit(int(name.removeprefix("catalog/")))


def _tear(image: SimulatedDisk, kind: str, arguments: tuple[Any, ...]) -> None:
    image.crash_at(1, tear=True)
    try:
        getattr(image, kind)(*arguments)
    except PowerCut:
        return
    raise AssertionError(f"the power was not cut at {kind}")
