"""Rings: every stripe has its units on different servers, and rings on as different machines as there are."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.erasure.ring import Ring
from holdfast.erasure.seating import seat
from holdfast.errors import ConfigurationError

shapes = st.tuples(st.integers(1, 6), st.integers(1, 2))


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    data, parity = draw(shapes)
    size = draw(st.integers(data + parity, 2 * (data + parity) - 1))
    return Ring(servers=tuple(draw(st.permutations(range(size)))), data=data, parity=parity)


@given(rings())
def test_the_units_of_a_stripe_are_on_different_servers(ring: Ring) -> None:
    for stripe in range(ring.size):
        units = [*ring.hosts(stripe), *ring.members(stripe)]
        assert len(set(units)) == ring.data + ring.parity
        assert units == [(stripe + step) % ring.size for step in range(len(units))]


@given(rings())
def test_in_a_cycle_each_server_has_every_member_number_and_every_parity_once(ring: Ring) -> None:
    for position in range(ring.size):
        assert ring.position(ring.servers[position]) == position
        members = [ring.member(position, stripe) for stripe in range(ring.size)]
        assert sorted(each for each in members if each is not None) == list(range(ring.data))
        for member in range(ring.data):
            stripe = ring.stripe(position, member)
            assert ring.member(position, stripe) == member and ring.members(stripe)[member] == position
        for parity in range(ring.parity):
            assert ring.host(ring.hosted(position, parity), parity) == position


@given(shapes, st.integers(0, 60), st.data())
def test_servers_are_divided_into_as_many_even_rings_as_possible(
    shape: tuple[int, int], more: int, data: st.DataObject
) -> None:
    units = sum(shape)
    domains = data.draw(st.lists(st.sampled_from("abcdefg"), min_size=units + more, max_size=units + more))
    seating = seat(units + more, data=shape[0], parity=shape[1], domains=domains)
    sizes = [ring.size for ring in seating.rings]
    assert sorted(server for ring in seating.rings for server in ring.servers) == list(range(units + more))
    assert len(sizes) == (units + more) // units and units <= min(sizes) and max(sizes) <= 2 * units - 1
    assert max(sizes) - min(sizes) <= 1
    assert all(server in seating.ring_of(server).servers for server in range(units + more))


@given(shapes, st.integers(0, 60), st.data())
def test_a_machine_costs_each_ring_as_few_members_as_can_be(
    shape: tuple[int, int], more: int, data: st.DataObject
) -> None:
    servers = sum(shape) + more
    domains = data.draw(st.lists(st.sampled_from("abcdefghijkl"), min_size=servers, max_size=servers))
    seating = seat(servers, data=shape[0], parity=shape[1], domains=domains)
    fewest = -(-max(Counter(domains).values()) // len(seating.rings))
    assert seating.most_lost == fewest
    assert bool(seating.crowds) == (fewest > 1)
    for crowd in seating.crowds:
        assert {domains[server] for server in crowd.servers} == {crowd.domain}
        assert len({seating.ring_of(server).servers for server in crowd.servers}) == 1


def test_two_servers_on_each_of_five_machines_are_two_rings_without_a_crowd() -> None:
    seating = seat(10, data=4, parity=1, domains=[f"machine {server // 2}" for server in range(10)])
    assert [ring.servers for ring in seating.rings] == [(0, 2, 4, 6, 8), (1, 3, 5, 7, 9)]
    assert seating.crowds == ()


def test_servers_of_one_machine_stand_apart_where_a_ring_has_several() -> None:
    seating = seat(6, data=2, parity=1, domains=["a", "a", "a", "b", "c", "d"])
    assert [ring.servers for ring in seating.rings] == [(0, 4, 2), (1, 3, 5)]
    assert seating.most_lost == 2


def test_rings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"parity of 4 \+ 1 needs 4 \+ 1 servers or more, .* has 4"):
        seat(4, data=4, parity=1)
    with pytest.raises(ConfigurationError, match="5 servers have a failure domain each, got 2"):
        seat(5, data=4, parity=1, domains=["a", "b"])
    with pytest.raises(ConfigurationError, match="do not fit a ring of 3 servers"):
        Ring(servers=(0, 1, 2), data=2, parity=2)
    with pytest.raises(ConfigurationError, match="one position in a ring"):
        Ring(servers=(0, 1, 1), data=2, parity=1)


def test_the_protocol_can_read_rings_without_numpy() -> None:
    code = "import sys, holdfast.erasure.ring, holdfast.erasure.seating; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
