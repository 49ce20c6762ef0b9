"""The layout of a ring names every row's stripe, and all servers mean the same by a name."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster.parity.layout import GROUP_SHIFT, RingLayout, block_stripes
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import ModelPlan, TableSpec
from holdfast.erasure.ring import Ring
from holdfast.policy import SGD, Adagrad, Constant
from tests.cluster.parity.models import placements


@settings(deadline=None, max_examples=40)
@given(placements())
def test_every_row_and_dense_part_has_one_stripe_of_its_server(made: tuple[Placement, Ring]) -> None:
    placement, ring = made
    layout = RingLayout(placement, ring)
    for position, server in enumerate(ring.servers):
        owned, rows = layout.owned(server), 0
        for group, lines in enumerate(layout.lines):
            size = placement.groups[group].size(server)
            numbers = lines.numbers(position, np.arange(size))
            assert len(np.unique(numbers)) == size and owned.contains(numbers + (group << GROUP_SHIFT)).all()
            np.testing.assert_array_equal(lines.data_rows(position, numbers), np.arange(size))
            rows += size
        assert len(owned) == rows + 1 and layout.dense_of(owned) == [server]


@settings(deadline=None, max_examples=40)
@given(placements())
def test_what_some_server_owns_others_host(made: tuple[Placement, Ring]) -> None:
    layout, ring = RingLayout(*made), made[1]
    owned = StripeSet.union(layout.owned(server) for server in ring.servers)
    hosted = [layout.hosted(server) for server in ring.servers]
    assert StripeSet.union(hosted) == owned
    assert sum(map(len, hosted)) == ring.parity * len(owned)
    for server in ring.servers:
        for hosts, stripes in layout.by_hosts(layout.owned(server)).items():
            assert server not in hosts and len(set(hosts)) == ring.parity and stripes
            assert all(not stripes - layout.hosted(host) for host in hosts)


@settings(deadline=None, max_examples=40)
@given(placements())
def test_a_host_keeps_one_parity_row_for_each_stripe(made: tuple[Placement, Ring]) -> None:
    layout, ring = RingLayout(*made), made[1]
    for position, server in enumerate(ring.servers):
        for group, lines in enumerate(layout.lines):
            numbers = layout.of_group(layout.hosted(server), group).numbers()
            rows = lines.parity_rows(position, numbers)
            assert len(np.unique(rows)) == len(rows) and (rows < lines.stripes.size(position)).all()
            np.testing.assert_array_equal(lines.parity_numbers(position, rows), numbers)
            for line, (first, last) in enumerate(zip(lines.cuts(numbers), lines.cuts(numbers)[1:], strict=False)):
                assert (numbers[first:last] // max(lines.rows, 1) == line).all()


@settings(deadline=None, max_examples=40)
@given(placements(), st.integers(0, 2**32))
def test_runs_of_stripes_lie_in_the_rows_of_their_stripes(made: tuple[Placement, Ring], seed: int) -> None:
    layout, ring, draw = RingLayout(*made), made[1], np.random.default_rng(seed)
    for position, server in enumerate(ring.servers):
        for stripes, is_data in ((layout.owned(server), True), (layout.hosted(server), False)):
            numbers = stripes.numbers()
            for group, line, part in layout.split(StripeSet.of(numbers[draw.random(len(numbers)) < 0.7])):
                lines, bounds = layout.lines[group], part.to_arrays()[0]
                rows = lines.data_rows if is_data else lines.parity_rows
                runs = lines.data_runs if is_data else lines.parity_runs
                np.testing.assert_array_equal(runs(position, line, bounds).rows(), rows(position, part.numbers()))


@settings(deadline=None, max_examples=40)
@given(placements())
def test_members_of_stripes_are_those_who_own_them(made: tuple[Placement, Ring]) -> None:
    layout, ring = RingLayout(*made), made[1]
    hosted = layout.hosted(ring.servers[0])
    by_member = layout.by_member(hosted)
    assert {server: hosted & layout.owned(server) for server in ring.servers if hosted & layout.owned(server)} == dict(
        by_member
    )
    assert StripeSet.union(by_member.values()) == hosted


@settings(deadline=None, max_examples=40)
@given(placements(), st.integers(1, 50))
def test_blocks_of_one_set_of_hosts_come_to_all_in_the_end(made: tuple[Placement, Ring], size: int) -> None:
    layout = RingLayout(*made, block_stripes=size)
    rest, taken = layout.owned(made[1].servers[-1]), 0
    while rest:
        block = layout.block(rest)
        assert block and not block - rest and len(layout.by_hosts(block)) == 1 and len(block) <= size
        rest, taken = rest - block, taken + len(block)
    assert taken == len(layout.owned(made[1].servers[-1])) and layout.block(rest) == layout.none


def test_a_block_has_so_many_bytes_of_the_widest_rows() -> None:
    tables = [TableSpec(name=f"t{width}.weight", rows=9, width=width, init=Constant()) for width in (4, 64)]
    placement = Placement(ModelPlan(tables=tuple(tables), dense=()), 3)
    assert block_stripes(placement, Adagrad(0.1).rule(), 1 << 20) == (1 << 20) // 512
    assert block_stripes(placement, SGD(0.1).rule(), 1 << 20) == (1 << 20) // 256
    assert block_stripes(placement, SGD(0.1).rule(), 100) == 1
