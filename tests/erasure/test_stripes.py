"""Every row has its parities, on other servers than its own, and both ways of asking where agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import ModelPlan, TableSpec
from holdfast.erasure.code import Code
from holdfast.erasure.ring import Ring
from holdfast.erasure.seating import seat
from holdfast.erasure.stripes import Stripes, choose_block_rows
from holdfast.errors import ConfigurationError
from holdfast.policy import Constant

CRITEO_KAGGLE = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip


@st.composite
def stripes(draw: st.DrawFn) -> Stripes:
    """Arrays that may be empty, or much longer than others."""
    data, parity = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    size = draw(st.integers(data + parity, 2 * (data + parity) - 1))
    ring = Ring(servers=tuple(range(size)), data=data, parity=parity)
    sizes = draw(st.lists(st.one_of(st.integers(0, 40), st.integers(30, 33)), min_size=size, max_size=size))
    return Stripes(ring, sizes, draw(st.sampled_from([None, 1, 2, 4, 7, 64])))


@settings(deadline=None)
@given(stripes())
def test_a_row_and_its_parity_rows_find_each_other(found: Stripes) -> None:
    ring = found.ring
    for position, size in enumerate(found.sizes):
        rows = np.arange(size)
        for member in range(ring.data):
            mine = rows[found.members(rows) == member]
            stripe = ring.stripe(position, member)
            for parity, host in enumerate(ring.hosts(stripe)):
                at = found.parity_rows(mine, parity)
                assert host != position and (at < found.size(host)).all()
                np.testing.assert_array_equal(found.parities(at), np.full(len(at), parity))
                np.testing.assert_array_equal(found.data_rows(at, member), mine)


@settings(deadline=None)
@given(stripes())
def test_a_parity_row_protects_one_row_of_each_member_at_most_and_the_last_one_at_least_one(found: Stripes) -> None:
    ring = found.ring
    for position in range(ring.size):
        taken = np.zeros((found.size(position), ring.size), np.int64)
        for parity in range(ring.parity):
            for member, at in enumerate(ring.members(ring.hosted(position, parity))):
                rows = np.arange(found.sizes[at])
                rows = rows[found.members(rows) == member]
                np.add.at(taken, (found.parity_rows(rows, parity), at), 1)
        assert taken.max(initial=0) <= 1
        assert not len(taken) or taken[-1].any()


@settings(deadline=None)
@given(stripes(), st.integers(0, 2**32))
def test_the_rows_of_any_r_dead_servers_follow_from_the_others(found: Stripes, seed: int) -> None:
    """Encode whole rings by what the closed form says, lose servers, and decode."""
    draw, ring = np.random.default_rng(seed), found.ring
    code = Code(data=ring.data, parity=ring.parity)
    arrays = [draw.integers(0, 2**32, (size, 2), dtype=np.uint32) for size in found.sizes]
    parities = [np.zeros((found.size(position), 2), np.uint32) for position in range(ring.size)]
    for position, array in enumerate(arrays):
        order, cuts = found.slices(np.arange(len(array)))
        for member in range(ring.data):
            rows = order[cuts[member] : cuts[member + 1]]
            for parity, host in enumerate(ring.hosts(ring.stripe(position, member))):
                code.update(parities[host], parity, found.parity_rows(rows, parity), member, array[rows])
    dead = draw.choice(ring.size, ring.parity, replace=False).tolist()
    for position in dead:
        rows = np.arange(found.sizes[position])
        for member in range(ring.data):
            mine, stripe = rows[found.members(rows) == member], ring.stripe(position, member)
            at = found.parity_rows(mine, 0)
            units = {}
            for number, other in enumerate(ring.members(stripe)):
                if other not in dead:
                    units[number] = records(arrays[other], found.data_rows(at, number))
            for parity, host in enumerate(ring.hosts(stripe)):
                if host not in dead:
                    units[ring.data + parity] = records(parities[host], found.parity_rows(mine, parity))
            np.testing.assert_array_equal(code.decode(units, [member])[member], arrays[position][mine])


def records(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Those outside the array are zeros."""
    values = np.zeros((len(rows), array.shape[1]), np.uint32)
    inside = rows < len(array)
    values[inside] = array[rows[inside]]
    return values


@given(stripes())
def test_slices_hold_every_row_once_in_its_order(found: Stripes) -> None:
    rows = np.arange(max(found.sizes))[::-1]
    order, cuts = found.slices(rows)
    assert sorted(order.tolist()) == list(range(len(rows))) and len(cuts) == found.ring.data + 1
    for member in range(found.ring.data):
        mine = order[cuts[member] : cuts[member + 1]]
        assert (found.members(rows[mine]) == member).all() and (np.diff(mine) > 0).all()


@pytest.mark.parametrize("servers", [5, 7, 16])
@pytest.mark.parametrize(("data", "parity"), [(4, 1), (3, 2), (2, 1)])
def test_parity_takes_its_share_of_memory_and_a_hundredth_at_most(servers: int, data: int, parity: int) -> None:
    tables = [
        TableSpec(name=f"t{number}.weight", rows=rows, width=width, init=Constant())
        for number, rows in enumerate(CRITEO_KAGGLE)
        for width in ((64,) if number % 3 else (16,))
    ]
    kept = protected = 0
    for group in Placement(ModelPlan(tables=tuple(tables), dense=()), servers).groups:
        for ring in seat(servers, data=data, parity=parity).rings:
            stripes = Stripes(ring, [group.size(server) for server in ring.servers])
            kept += group.width * sum(stripes.size(position) for position in range(ring.size))
            protected += group.width * sum(stripes.sizes)
    assert parity / data <= kept / protected <= parity / data + 0.01


def test_blocks_are_powers_of_two_that_grow_with_the_arrays() -> None:
    assert [choose_block_rows([rows] * 5, 1) for rows in (0, 1, 99, 200, 399, 400, 10**4, 10**9)] == [
        1, 1, 1, 2, 2, 4, 64, 64,
    ]  # fmt: skip
    assert choose_block_rows([400] * 6, 2) == 2


def test_arrays_that_do_not_fit_the_ring_are_refused() -> None:
    ring = Ring(servers=(0, 1, 2), data=2, parity=1)
    with pytest.raises(ConfigurationError, match="ring of 3 servers has as many arrays of rows, got 2"):
        Stripes(ring, [1, 2])
    with pytest.raises(ConfigurationError, match="at least 1 row, got 0"):
        Stripes(ring, [1, 2, 3], 0)
