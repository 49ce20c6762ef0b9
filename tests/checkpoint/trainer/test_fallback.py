"""Several ranks fall back together: what one of them cannot read is restored by none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.checkpoint.trainer.fallback import Fallback, Found
from holdfast.errors import DamagedData, HoldfastError, RunError, StorageUnavailable
from holdfast.format.catalog import Entry
from tests.checkpoint.commit.test_chain import entry

WORLD = 3
NEWEST_FIRST = [entry(step) for step in (3, 2, 1)]


class Meeting:
    """The agreement of threads that stand for ranks."""

    world = WORLD

    def __init__(self, rank: int, flags: list[bool], barrier: threading.Barrier) -> None:
        self.rank, self._flags, self._barrier = rank, flags, barrier

    def broadcast(self, value: Any) -> Any:
        raise NotImplementedError("restoring needs none")

    def any(self, flag: bool) -> bool:
        self._flags[self.rank] = flag
        self._barrier.wait(60.0)
        found = any(self._flags)
        self._barrier.wait(60.0)
        return found


def restored_by_all(read: Callable[[int, int, int], None]) -> list[Found[int] | HoldfastError]:
    """How each rank fared. ``read`` is called with rank, step and the number of this rank's attempt, and may raise."""
    flags, barrier = [False] * WORLD, threading.Barrier(WORLD)

    def run(rank: int) -> Found[int] | HoldfastError:
        attempts = 0

        def attempt(wanted: Entry) -> int:
            nonlocal attempts
            attempts += 1
            read(rank, wanted.info.step, attempts)
            return wanted.info.step

        try:
            return Fallback(Meeting(rank, flags, barrier), attempt).restore(NEWEST_FIRST)
        except HoldfastError as error:
            return error

    with ThreadPoolExecutor(WORLD) as ranks:
        return list(ranks.map(run, range(WORLD)))


def unreadable(name: str) -> DamagedData:
    return DamagedData(name, "Input/output error")


def test_all_restore_the_same_one_and_suspect_the_same_ones() -> None:
    def read(rank: int, step: int, attempt: int) -> None:
        if rank == step - 1 and step > 1:  # each rank but the first has one that it cannot read
            raise unreadable(f"step {step}")

    for found in restored_by_all(read):
        assert isinstance(found, Found) and found.restored == found.entry.info.step == 1
        assert [each.info.step for each in found.failed] == [3, 2]


def test_one_that_a_rank_could_not_read_at_first_is_restored_by_all_after_all() -> None:
    def read(rank: int, step: int, attempt: int) -> None:
        if (rank, attempt) == (1, 1):
            raise unreadable(f"step {step}")

    for found in restored_by_all(read):
        assert isinstance(found, Found) and found.restored == 3 and found.failed == ()


def test_an_outage_that_one_rank_sees_ends_it_on_all_ranks() -> None:
    def read(rank: int, step: int, attempt: int) -> None:
        if rank == 2:
            raise StorageUnavailable("nobody answers")

    kinds = [type(found) for found in restored_by_all(read)]
    assert kinds == [RunError, RunError, StorageUnavailable]


def test_a_run_of_which_nothing_can_be_read_is_told_on_all_ranks() -> None:
    def read(rank: int, step: int, attempt: int) -> None:
        if rank == 0:
            raise unreadable(f"step {step}")

    for error in restored_by_all(read):
        with pytest.raises(DamagedData, match="no checkpoint of the run can be restored"):
            raise error if isinstance(error, HoldfastError) else AssertionError(error)
