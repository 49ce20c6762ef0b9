"""What servers of a ring ask each other while some have nothing to give: who waits for whom, and what is kept of it."""

from __future__ import annotations

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
