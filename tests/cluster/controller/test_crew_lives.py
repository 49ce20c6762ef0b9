"""Processes that go on as somebody else, and may not have heard so when they are given up."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cluster.controller.crew import Crew
from holdfast.cluster.core.members import CONTROLLER, Member, Role
from holdfast.cluster.launch.base import Death
from holdfast.cluster.launch.local import LocalProcesses
from holdfast.cluster.wire.beats import Beats
from tests.cluster.wire.meeting import Meeting

PATIENCE_S = 60.0
FIRST = Member(Role.SERVER, 0, 1)
NEXT, LAST = replace(FIRST, incarnation=2), replace(FIRST, incarnation=3)
Buried = Callable[[], tuple[Member, Death]]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Crew, Buried]]:
    """A crew whose processes end by themselves, because they cannot read what they are told; who died next."""
    meeting = Meeting("loopback", tmp_path)
    beats = Beats(meeting.endpoint(CONTROLLER).sockets, timeout_s=60)
    launcher = LocalProcesses(logs=tmp_path / "logs").open(servers=1, workers=1)
    crew = Crew(launcher, beats, lambda member: b"nothing that makes sense", spares=1)

    def buried() -> tuple[Member, Death]:
        while not (found := crew.bury()):
            assert select.select([launcher], [], [], PATIENCE_S)[0], "nobody died"
        return found[0]

    yield crew, buried
    launcher.close(grace_s=0.0)
    beats.close()
    meeting.close()


def start(crew: Crew, *members: Member) -> None:
    for member in members:
        crew.start(member, due_s=0.0)
    assert crew.start_due(0.0) == []


def is_killed(death: Death) -> bool:
    return death.exit_code is None


@pytest.mark.parametrize("given_up", [FIRST, NEXT, LAST], ids=str)
def test_a_process_is_killed_though_it_did_not_hear_that_it_is_another(
    given_up: Member, made: tuple[Crew, Buried]
) -> None:
    crew, buried = made
    start(crew, FIRST)
    crew.up(FIRST)
    crew.goes_back(FIRST, NEXT)
    crew.goes_back(NEXT, LAST)
    crew.fence(given_up)
    member, death = buried()
    assert member == FIRST and is_killed(death)


def test_a_process_lives_on_if_somebody_gives_up_who_it_was(made: tuple[Crew, Buried]) -> None:
    crew, buried = made
    start(crew, FIRST)
    crew.up(FIRST)
    crew.goes_back(FIRST, NEXT)
    crew.up(NEXT)
    crew.fence(FIRST)
    member, death = buried()
    assert member == NEXT and not is_killed(death)


def test_a_spare_that_was_given_a_place_is_killed_as_that_member_and_not_as_a_spare(
    made: tuple[Crew, Buried],
) -> None:
    crew, buried = made
    start(crew, *crew.missing_spares)
    (spare,) = crew.spares
    crew.up(spare)
    assert crew.known_as(spare) == spare
    assert crew.place_spare(NEXT) == spare
    assert crew.known_as(spare) == NEXT and crew.known_as(FIRST) == FIRST
    crew.fence(spare)
    assert not crew.bury()
    crew.fence(NEXT)
    member, death = buried()
    assert member == NEXT and is_killed(death)
