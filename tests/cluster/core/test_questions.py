"""What servers of a ring ask each other while some have nothing to give: who waits for whom, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.cluster.core.members import Member
from holdfast.cluster.core.messages import Message, Send
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.parity_messages import Absorbed, Fell, Values
from tests.cluster.core.mutant_parity import protected
from tests.cluster.core.ring import Ring


def bare_without(ring: Ring, host: int, member: int) -> frozenset[int]:
    """Stripes whose parity a host lacks, and of which that member has no row."""
    return frozenset(stripe for stripe in ring.host(host).lacks if member not in ring.layout.members[stripe])


def a_ring_of_which_two_died() -> Ring:
    """Server 0 has its rows back, and none of its parities; server 1 has nothing."""
    ring = Ring(6, data=4, rows=60)
    ring.kill(0, 1)
    ring.advance_rows(0)
    assert not ring.rows(0).missing and bare_without(ring, 0, 1)
    return ring


# ---- parities that lack a record which their member does not have ----------------------------------------------------


def test_a_server_encodes_all_parities_that_need_no_record_of_one_that_is_held_back() -> None:
    ring = a_ring_of_which_two_died()
    ring.advance_all(0)
    assert not bare_without(ring, 0, 1)
    assert ring.host(0).lacks


def test_it_encodes_the_others_when_that_one_has_its_rows() -> None:
    ring = a_ring_of_which_two_died()
    ring.advance_all(0)
    ring.advance_all()
    assert all(core.is_whole for core in ring.cores.values())


def test_it_does_not_ask_that_one_for_more_before_it_has_what_it_was_asked_for() -> None:
    ring = a_ring_of_which_two_died()
    ring.advance(0)
    kept = len(ring.parity(1)._unanswered)
    ring.advance_all(0)
    assert len(ring.parity(1)._unanswered) <= kept + 1


# ---- rows that a server does not have when hosts ask for them --------------------------------------------------------


def open_questions(ring: Ring, member: int) -> set[tuple[int, int]]:
    """By host and attempt, what hosts have asked a member for, and still wait for."""
    found = set()
    for index in range(len(ring.controller.view.servers)):
        host = ring.host(index)
        found |= {(index, attempt) for attempt, asked in host._asked.items() if asked.member == member}
        found |= {(index, attempt) for attempt, decode in host._decodes.items() if decode.needed.get(member)}
    return found


def kept_questions(ring: Ring, member: int) -> set[tuple[int, int]]:
    """The same, as the member has it in mind."""
    return {(each.host.index, each.ask.attempt) for each in ring.parity(member)._unanswered}


def test_a_server_keeps_in_mind_what_hosts_still_wait_for_and_nothing_else() -> None:
    ring = a_ring_of_which_two_died()
    ring.advance_all(0)
    assert kept_questions(ring, 1) == open_questions(ring, 1)


def test_hosts_that_gave_a_row_without_another_get_nothing_more_of_that_one() -> None:
    ring = a_ring_of_which_two_died()
    unwanted: list[Message] = []

    def note(sender: Member, receiver: Member, message: Message) -> None:
        if isinstance(message, Values) and message.stripes:
            host = ring.host(receiver.index)
            unwanted.extend([message] * (message.attempt not in host._asked | host._decodes))

    ring.arrived = note
    ring.advance_rows(1)
    assert not ring.rows(1).missing
    assert not unwanted


def test_questions_for_parities_that_are_dropped_are_kept_in_mind_no_longer() -> None:
    ring = a_ring_of_which_two_died()
    ring.advance_all(0)
    asked = {attempt for host, attempt in kept_questions(ring, 1) if host == 0}
    member = next(each for each in ring.layout.by_member(ring.host(0).lacks) if each != 1)
    ring.send(ring.member(member), [Send(ring.member(0), Fell(ring.host(0).lacks))])
    assert asked and not asked & {attempt for host, attempt in kept_questions(ring, 1) if host == 0}


class CountsLooks(Parity):
    """Counts how often it looks whether a question can be answered that could not."""

    looks = 0

    def _answer(self, question: Any, *, is_first: bool = False) -> Iterator[Send]:
        self.looks += not is_first
        return super()._answer(question, is_first=is_first)


def test_a_message_that_brings_no_rows_costs_no_look_at_what_waits_for_them() -> None:
    ring = Ring(6, data=4, rows=60, cores=protected(parity=CountsLooks))
    ring.kill(0, 1)
    ring.advance_rows(0)
    ring.advance_all(0)
    parity = ring.parity(1)
    assert isinstance(parity, CountsLooks) and parity._unanswered
    looks = parity.looks
    ring.send(ring.member(2), [Send(ring.member(1), Absorbed(0))])
    assert parity.looks == looks
    ring.advance(1)
    assert parity.looks > looks
