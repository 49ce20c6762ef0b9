"""Who is listened to: the newest incarnation, in order, until something is missing."""

from __future__ import annotations

import pytest

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.wire.frames import Route
from holdfast.cluster.wire.inbox import Inbox
from holdfast.cluster.wire.malformed import MalformedFrame

ME = Member(Role.SERVER, 0, 2)
WORKER, REPLACEMENT = Member(Role.WORKER, 0, 1), Member(Role.WORKER, 0, 2)


def route(sender: Member, receiver: Member = ME) -> bytes:
    return Route(sender, receiver).to_bytes()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(ME, lambda member: member.index < 2)


def test_frames_in_order_are_taken(inbox: Inbox) -> None:
    assert [inbox.accept(route(WORKER), number) for number in (1, 2, 3)] == [WORKER] * 3
    assert inbox.take_broken() == []


@pytest.mark.parametrize("numbers", [(1, 3), (1, 1), (2,), (1, 2, 1)])
def test_a_gap_or_repetition_breaks_a_stream_once_and_for_good(inbox: Inbox, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        last = inbox.accept(route(WORKER), number)
    assert last is None
    assert inbox.take_broken() == [WORKER]
    assert inbox.accept(route(WORKER), 2) is None
    assert (inbox.take_broken(), inbox.dropped.broken) == ([], 1)


def test_a_replacement_begins_anew_and_silences_its_predecessor(inbox: Inbox) -> None:
    inbox.accept(route(WORKER), 1)
    inbox.accept(route(WORKER), 5)
    assert inbox.accept(route(REPLACEMENT), 1) == REPLACEMENT
    assert inbox.accept(route(WORKER), 2) is None
    assert inbox.dropped.outdated == 1


@pytest.mark.parametrize("receiver", [Member(Role.SERVER, 0, 1), Member(Role.SERVER, 0, 3), Member(Role.WORKER, 0, 2)])
def test_what_is_for_another_life_or_place_is_dropped(inbox: Inbox, receiver: Member) -> None:
    assert inbox.accept(route(WORKER, receiver), 1) is None
    assert inbox.dropped.misdirected == 1


def test_a_member_that_the_job_does_not_have_is_dropped(inbox: Inbox) -> None:
    assert inbox.accept(route(Member(Role.WORKER, 2, 1)), 1) is None
    assert inbox.dropped.unknown == 1


def test_a_malformed_message_ends_its_stream(inbox: Inbox) -> None:
    inbox.accept(route(WORKER), 1)
    inbox.condemn(route(WORKER))
    assert inbox.take_broken() == [WORKER]
    assert inbox.accept(route(WORKER), 2) is None


def test_a_route_that_is_none_is_malformed(inbox: Inbox) -> None:
    with pytest.raises(MalformedFrame):
        inbox.accept(bytes(20), 1)
