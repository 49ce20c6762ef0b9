"""Ranks of one machine agree over lines of their own: on the same values, and on who is missing."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.checkpoint.ranks.agreement import Agreement
from holdfast.checkpoint.ranks.lines import LineAgreement, draw_lines, machine_of_this_rank
from holdfast.checkpoint.wire.readiness import wait_readable
from holdfast.errors import RanksMissing

WORLD = 3
T = TypeVar("T")


class Meeting:
    """The agreement of threads that stand for ranks, before they have lines."""

    world = WORLD

    def __init__(self, rank: int, said: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self._said, self._barrier = rank, said, barrier

    def gather(self, value: Any) -> list[Any]:
        self._said[self.rank] = value
        self._barrier.wait(60.0)
        found = list(self._said)
        self._barrier.wait(60.0)
        return found

    def broadcast(self, value: Any, *, wait: bool = True) -> Any:
        return self.gather(value)[0]

    def any(self, flag: bool) -> bool:
        return any(self.gather(flag))


def by_all(act: Callable[[Agreement], T]) -> list[T]:
    """What every rank gets, all of them at once."""
    said, barrier = [None] * WORLD, threading.Barrier(WORLD)
    with ThreadPoolExecutor(WORLD) as ranks:
        return list(ranks.map(lambda rank: act(Meeting(rank, said, barrier)), range(WORLD)))


def drawn(agreement: Agreement, timeout_s: float = 60.0) -> LineAgreement:
    found = draw_lines(agreement, timeout_s)
    assert found is not None
    return found


def alone(rank: int, timeout_s: float = 60.0) -> tuple[LineAgreement, socket.socket]:
    """One of two ranks, and the other end of its line."""
    own, other = socket.socketpair()
    return LineAgreement({1 - rank: own}, rank=rank, world=2, timeout_s=timeout_s), other


@pytest.mark.parametrize("length", [0, 1, 5_000_000], ids=["empty", "short", "longer than any buffer"])
def test_all_ranks_get_what_was_said(length: int) -> None:
    def talk(agreement: Agreement) -> list[Any]:
        lines = drawn(agreement)
        said = "é" * length + str(lines.rank)
        return [lines.broadcast(said), lines.gather([said, None]), lines.broadcast({"a": 1}, wait=False)]

    words = ["é" * length + str(rank) for rank in range(WORLD)]
    assert by_all(talk) == [[words[0], [[word, None] for word in words], {"a": 1}]] * WORLD


@pytest.mark.parametrize("flags", [[False] * WORLD, [True, False, False], [False, False, True]])
def test_one_rank_that_says_so_is_enough(flags: list[bool]) -> None:
    assert by_all(lambda agreement: drawn(agreement).any(flags[agreement.rank])) == [any(flags)] * WORLD


def test_what_is_said_later_is_not_mixed_up_with_what_was_not_read_yet() -> None:
    def talk(agreement: Agreement) -> list[Any]:
        lines = drawn(agreement)
        return [lines.broadcast(number, wait=False) for number in range(100)] + lines.gather(lines.rank)

    assert by_all(talk) == [[*range(100), *range(WORLD)]] * WORLD


def test_every_rank_watches_all_others() -> None:
    def watch(agreement: Agreement) -> tuple[list[int], bool]:
        lines = drawn(agreement)
        return sorted(lines.peers), bool(wait_readable(lines.peers.values(), 0.0))

    assert by_all(watch) == [(sorted({*range(WORLD)} - {rank}), False) for rank in range(WORLD)]


def test_a_rank_that_agrees_on_something_else_is_named() -> None:
    ends = dict(enumerate(socket.socketpair()))
    first, second = (LineAgreement({1 - rank: ends[rank]}, rank=rank, world=2, timeout_s=60.0) for rank in ends)
    first.broadcast("what nobody asks for", wait=False)
    with pytest.raises(RanksMissing, match=r"rank 1 of 2 waited .* rank 0 agrees on something else"):
        second.any(False)


@pytest.mark.parametrize("machines", [["a", "a", "b"], ["a", None, "a"], [None] * WORLD])
def test_ranks_of_several_machines_have_no_lines(machines: list[str | None]) -> None:
    assert by_all(lambda each: draw_lines(each, 60.0, lambda: machines[each.rank])) == [None] * WORLD


def test_ranks_that_cannot_have_a_socket_have_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("long" * 30)  # a socket's path has at most 107 characters
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert by_all(lambda each: draw_lines(each, 60.0)) == [None] * WORLD


def test_nothing_is_left_of_the_place_where_they_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    by_all(drawn)
    assert not list(tmp_path.iterdir())


def test_processes_of_this_machine_know_it() -> None:
    assert machine_of_this_rank() == machine_of_this_rank() is not None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("part", [b"", b"\x05\x00\x00"], ids=["before it says anything", "in the middle of a word"])
def test_a_rank_that_is_gone_is_named(rank: int, part: bytes) -> None:
    lines, other = alone(rank)
    other.sendall(part)
    other.close()
    with pytest.raises(RanksMissing, match=f"rank {rank} of 2 waited .* rank {1 - rank} is gone"):
        lines.any(False)


def test_a_rank_that_does_not_come_is_waited_for_as_long_as_was_said() -> None:
    lines, other = alone(0, timeout_s=0.1)
    with closing(other), pytest.raises(RanksMissing, match="rank 1 did not come"):
        lines.gather(0)


def test_a_rank_that_does_not_listen_is_waited_for_as_long_as_was_said() -> None:
    lines, other = alone(0, timeout_s=0.1)
    with closing(other), pytest.raises(RanksMissing, match="rank 1 does not listen"):
        lines.broadcast("word" * 10_000_000)
