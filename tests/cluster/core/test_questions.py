"""What servers of a ring ask each other while some have nothing to give: who waits for whom, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import Message, Send
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.parity_host import ParityHost
from holdfast.cluster.core.parity_messages import Absorbed, Ask, Dropped, Fell, Given, Refused, Values, Want
from holdfast.cluster.core.peers import Peers
from holdfast.cluster.core.possession import Possession
from tests.cluster.core.model import Part, SavedRow, Storage
from tests.cluster.core.mutant_parity import protected
from tests.cluster.core.ring import Ring
from tests.cluster.core.striped import Ledger, Rotation, StripedShard, Striping


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


# ---- rows that wait for a parity to be whole -------------------------------------------------------------------------


class Waiting:
    """A host of two stripes that lacks one member's records, and is asked for another's rows: it asks the former."""

    def __init__(self) -> None:
        layout = Rotation((6,) * 5, data=3, parity=2)
        both = [each for each, members in layout.members.items() if tuple(members) == tuple(layout.members[0])]
        self.stripes = frozenset(both[:2])
        self.lost, self.other, self.third = layout.members[0]
        self.view = View.first(servers=5, workers=1)
        self._peers = Peers(self.view)
        striping = Striping(layout, Ledger(), seed=0)
        shard = StripedShard(layout.hosts[0][0], striping, Storage(), set(), None)
        self.host = ParityHost(shard.index, layout, shard, self._peers)
        for each in list(self.host._complete(self.stripes, is_block=False)):
            if each.to.index != self.other:
                assert isinstance(each.message, Ask)
                records = dict.fromkeys(self.stripes, 1)
                list(self.host.values(each.to, Values(each.message.attempt, self.stripes, records, {})))
        lost = self.view.replacing(self.view.member(Role.SERVER, self.lost)).member(Role.SERVER, self.lost)
        list(self.host.want(lost, Want(1, self.stripes, layout.hosts[0])))

    def replace_other(self) -> list[Send]:
        """The member that it asked dies; what it says when it hears of the next."""
        self._peers.adopt(Member(Role.SERVER, self.other, 2))
        return list(self.host.adopt(self.other))

    def drop(self, stripe: int) -> list[Send]:
        """The row of the third member came from a save; what the host says when it hears of it."""
        return list(self.host.fell(self.view.member(Role.SERVER, self.third), Fell(frozenset({stripe}))))


def asked_for(sends: list[Send], member: int) -> frozenset[int]:
    return frozenset().union(
        *(each.message.stripes for each in sends if each.to.index == member and isinstance(each.message, Ask))
    )


def test_a_host_asks_at_once_who_comes_after_a_member_whose_records_somebody_waits_for() -> None:
    waiting = Waiting()
    assert asked_for(waiting.replace_other(), waiting.other) == waiting.stripes


def test_a_question_for_two_records_outlives_the_loss_of_one_of_their_parities() -> None:
    waiting = Waiting()
    dropped, kept = sorted(waiting.stripes)
    waiting.drop(dropped)
    assert [each.stripes for each in waiting.host._asked.values()] == [waiting.stripes]
    assert not asked_for(list(waiting.host._complete(waiting.stripes, is_block=False)), waiting.other)
    assert waiting.host._waiting[0][1].stripes == {kept}


# ---- sums that one host gave, and that need another's ----------------------------------------------------------------


class Lost:
    """A server without rows, of which one host gives sums with another row that is lost, and the other nothing."""

    def __init__(self) -> None:
        layout = Rotation((60,) * 6, data=4, parity=2)
        striping = Striping(layout, Ledger(), seed=0)
        saved = {row: SavedRow(record=striping.ledger.first(0, row)) for row in layout.rows[0]}
        shard = StripedShard(0, striping, Storage(Part(saved)), set(), None)
        self.view = View.first(servers=6, workers=1)
        self.rows = Possession(0, layout, shard, Peers(self.view), rebuild=True)
        self.most_sums = 0  # that were there at one time
        self.is_silent = False  # the other host does not answer

    def advance(self) -> bool:
        """It asks for a block, and is answered; whether there was one to ask for."""
        sends = asked = list(self.rows.advance())
        while sends:
            each, *sends = sends
            assert isinstance(each.message, Want)
            sends.extend(self._answered(each.to.index, each.message))
            self.most_sums = max(self.most_sums, len(self.rows._found))
        return bool(asked)

    def _answered(self, host: int, want: Want) -> list[Send]:
        if host != want.hosts[0]:
            return [] if self.is_silent else list(self.rows.refused(host, Refused(want.attempt, want.stripes)))
        lost = self.view.member(Role.SERVER, 0), self.view.member(Role.SERVER, 1)
        records = np.zeros((len(want.stripes), 2))  # arrays, which are not to be compared
        return list(self.rows.given(host, Given(want.attempt, want.stripes, records, lost, {})))


def test_sums_are_let_go_of_as_soon_as_no_other_host_can_add_to_them() -> None:
    lost = Lost()
    while lost.advance():
        pass
    assert lost.most_sums == 1 and not lost.rows._found
    assert lost.rows.doomed == lost.rows.missing


def test_a_server_that_has_its_rows_remembers_no_host_that_could_not_give_some() -> None:
    lost = Lost()
    while lost.advance():
        pass
    for each in list(lost.rows.fall_back(None)):
        assert isinstance(each.message, Fell)
        lost.rows.drop(each.to.index, Dropped(each.message.stripes, 1))
    assert lost.rows.catch_up({})
    assert not (lost.rows._refused or lost.rows._summed)


def test_sums_with_a_row_of_a_server_that_was_replaced_are_asked_for_again() -> None:
    lost = Lost()
    lost.is_silent = True
    while lost.advance():
        pass
    given = lost.rows._summed
    assert len(lost.rows._found) > 1 and all(given.values())
    lost.rows.adopt(1)
    assert not lost.rows._found and not any(given.values())
