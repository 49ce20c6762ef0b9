"""A ring in one process: pushes reach parities as differences, and lost rows come back bit for bit meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cluster.parity.accumulator import Accumulator
from holdfast.cluster.parity.layout import GROUP_SHIFT, RingLayout
from holdfast.cluster.parity.mirror import dense_words
from holdfast.cluster.parity.payload import Difference, StripeRecords
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.payload import Gradients, WantedRows
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.cluster.shard import Shard
from holdfast.cluster.wire.arrays import DTYPES
from holdfast.erasure.ring import Ring
from holdfast.policy import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad, Uniform
from tests.cluster.parity.models import placements

optimizers: st.SearchStrategy[Optimizer] = st.sampled_from(
    [SGD(0.1), SGD(0.1, momentum=0.9), Adagrad(0.1), RowwiseAdagrad(0.1), Adam(0.1)]
)
seeds = st.integers(0, 2**32)


@dataclass(frozen=True)
class Found:
    stripes: StripeSet
    records: Any


class World:
    """All servers of a ring; differences are delivered in the order of each stream."""

    def __init__(self, made: tuple[Placement, Ring], optimizer: Optimizer, seed: int) -> None:
        self.placement, self.ring = made
        self.layout = RingLayout(*made)
        self.optimizer = optimizer
        self.draw = np.random.default_rng(seed)
        self.shards = {server: self.shard(server) for server in self.ring.servers}
        for shard in self.shards.values():
            shard.start(np.arange(self.placement.plan.dense_size, dtype=np.float32))
        self.servers = {server: ShardParity(self.layout, shard) for server, shard in self.shards.items()}
        for host, parity in self.servers.items():
            for member, stripes in self.layout.by_member(self.layout.hosted(host)).items():
                parity.add(member, stripes, self.servers[member].give(stripes))

    def shard(self, server: int) -> Shard:
        return Shard(self.placement, server, self.optimizer, self.optimizer)

    def push(self, server: int) -> Gradients:
        groups, draw = self.placement.groups, self.draw
        rows = [np.flatnonzero(draw.random(group.size(server)) < 0.3) for group in groups]
        values = [
            draw.standard_normal((len(each), group.width), np.float32) for each, group in zip(rows, groups, strict=True)
        ]
        dense = draw.standard_normal(self.placement.dense[server].size, np.float32)
        return Gradients(rows=rows, values=values, dense=dense, lr_tables=0.1, lr_dense=0.05)

    def train(self, server: int, lacking: StripeSet | None = None) -> dict[int, Any]:
        """Some pushes to a server that is there, delivered together to all hosts that are."""
        none = self.layout.none
        for _ in range(self.draw.integers(1, 4)):
            self.servers[server].update(self.push(server), none)
        differences = self.servers[server].take_changes()
        for host, difference in differences.items():
            assert all(array.dtype in DTYPES.values() for array in difference)
            if host in self.servers:
                self.servers[host].absorb(server, difference, none if lacking is None else lacking)
        return differences

    def state(self, server: int) -> list[bytes]:
        shard = self.shards[server]
        rows = [group.records(np.arange(len(group.weights))).tobytes() for group in shard.groups]
        return [*rows, dense_words(shard.dense).tobytes()]

    def require_right_parities(self) -> None:
        """Every parity and mirror is what its members' rows give."""
        for host, parity in self.servers.items():
            fresh = ShardParity(self.layout, self.shard(host))
            for member, stripes in self.layout.by_member(self.layout.hosted(host)).items():
                fresh.add(member, stripes, self.servers[member].give(stripes))
            for array, wanted in zip(parity.parities.arrays, fresh.parities.arrays, strict=True):
                np.testing.assert_array_equal(array, wanted)
            for member in self.layout.mirrored(host):
                stripe = self.layout.dense(member)
                assert parity.mirrors.give(stripe).tobytes() == dense_words(self.shards[member].dense).tobytes()


@settings(deadline=None, max_examples=25)
@given(placements(), optimizers, seeds)
def test_parities_follow_pushes_to_the_bit(made: tuple[Placement, Ring], optimizer: Optimizer, seed: int) -> None:
    world = World(made, optimizer, seed)
    for _ in range(3):
        for server in world.ring.servers:
            world.train(server)
    world.require_right_parities()


@settings(deadline=None, max_examples=40)
@given(placements(), optimizers, seeds)
def test_lost_rows_come_back_while_the_others_are_pushed_to(
    made: tuple[Placement, Ring], optimizer: Optimizer, seed: int
) -> None:
    """As many servers as there are parities die; hosts gather rows one by one, and pushes go on in between."""
    world = World(made, optimizer, seed)
    for server in world.ring.servers:
        world.train(server)
    layout, draw = world.layout, world.draw
    lost = tuple(sorted(draw.choice(world.ring.servers, world.ring.parity, replace=False).tolist()))
    states = {server: world.state(server) for server in lost}
    for server in lost:
        del world.servers[server], world.shards[server]
    syndromes: dict[int, Found] = {}
    for host, parity in world.servers.items():
        stripes = layout.hosted(host) & StripeSet.union(layout.owned(server) for server in lost)
        gathered = parity.accumulator(stripes)
        for member, theirs in layout.by_member(stripes).items():
            if member in world.servers:
                half = theirs.first(len(theirs) // 2 if draw.random() < 0.5 else 0)
                for part in (half, theirs - half):
                    gathered.add(member, part, world.servers[member].give(part))
                    for pushed in world.servers:
                        difference = world.train(pushed).get(host)
                        if difference is not None:
                            gathered.absorb(pushed, difference)
        syndromes[host] = Found(stripes, gathered.syndrome(stripes))
    for server in lost:
        world.shards[server] = world.shard(server)
        replacement = ShardParity(layout, world.shards[server])
        for hosts, stripes in layout.by_hosts(layout.owned(server)).items():
            others = [layout.owned(each) for each in lost if each != server]
            both = stripes & StripeSet.union(others)
            for part, gone in ((stripes - both, (server,)), (both, lost)):
                given_by = {host: syndromes[host] for host in hosts if host in syndromes}
                if part:
                    replacement.solve(part, given_by, gone)
        assert world.state(server) == states[server]


def test_what_a_host_has_given_stays_as_it_is_while_it_gives_the_rest() -> None:
    """Rows of one question may hold different pushes: they are given one part after another, and sent uncopied."""
    tables = [TableSpec(name=name, rows=400, width=width, init=Uniform(-1, 1)) for name, width in (("a", 4), ("b", 9))]
    placement = Placement(ModelPlan(tables=tuple(tables), dense=(DenseSpec(name="mlp", shape=(5, 3)),)), 5)
    world = World((placement, Ring(servers=(0, 1, 2, 3, 4), data=4, parity=1)), SGD(0.1), 1)
    layout, lost = world.layout, 0
    host, stripes = next(iter(layout.by_hosts(layout.owned(lost)).items()))
    parts = [layout.of_group(stripes, group) for group in range(len(layout.lines))]
    shifted = [StripeSet(part.to_arrays()[0] + (group << GROUP_SHIFT)) for group, part in enumerate(parts)]

    def gathered() -> Accumulator:
        found = world.servers[host[0]].accumulator(stripes)
        for member, theirs in layout.by_member(stripes).items():
            if member != lost:
                found.add(member, theirs, world.servers[member].give(theirs))
        return found

    several, given = gathered(), []
    for part in shifted:
        records = several.syndrome(part)
        given.append((part, records, [each.tobytes() for each in records]))
    for part, records, before in given:
        assert [each.tobytes() for each in records] == before
        assert [each.tobytes() for each in gathered().syndrome(part)] == before


@settings(deadline=None, max_examples=25)
@given(placements(), optimizers, seeds)
def test_a_lost_servers_parities_are_encoded_anew_while_pushes_go_on(
    made: tuple[Placement, Ring], optimizer: Optimizer, seed: int
) -> None:
    """Differences of rows that a parity lacks are left out; those that follow the records are not."""
    world = World(made, optimizer, seed)
    host, layout = world.ring.servers[0], world.layout
    fresh = world.servers[host] = ShardParity(layout, world.shards[host])
    fresh.clear(layout.hosted(host))
    lacking = dict(layout.by_member(layout.hosted(host)))
    for member, stripes in list(lacking.items()):
        for part in (stripes.first(1), stripes - stripes.first(1)):
            fresh.add(member, part, world.servers[member].give(part))
            lacking[member] -= part
            for pushed in world.ring.servers:
                world.servers[pushed].update(world.push(pushed), layout.none)
                differences = world.servers[pushed].take_changes()
                for other, difference in differences.items():
                    without = lacking.get(pushed, layout.none) if other == host else layout.none
                    world.servers[other].absorb(pushed, difference, without)
    world.require_right_parities()


@settings(deadline=None, max_examples=25)
@given(placements(), optimizers, seeds)
def test_rows_that_hold_a_push_already_are_left_out_of_it(
    made: tuple[Placement, Ring], optimizer: Optimizer, seed: int
) -> None:
    world = World(made, optimizer, seed)
    server, layout = world.ring.servers[-1], world.layout
    push, parity = world.push(server), world.servers[server]
    touched = parity.touched(push.to_arrays())
    without = touched.first(len(touched) // 2) if seed % 2 else layout.dense(server)
    before = parity.give(without)
    parity.update(push, without)
    for host, difference in parity.take_changes().items():
        world.servers[host].absorb(server, difference, layout.none)
    assert [each.tobytes() for each in parity.give(without)] == [each.tobytes() for each in before]
    world.require_right_parities()


@settings(deadline=None, max_examples=25)
@given(placements(), seeds)
def test_pulls_and_pushes_name_their_stripes(made: tuple[Placement, Ring], seed: int) -> None:
    world = World(made, SGD(0.1), seed)
    server = world.ring.servers[0]
    parity, push = world.servers[server], world.push(server)
    touched = parity.touched(push.to_arrays())
    assert len(touched) == sum(map(len, push.rows)) + (len(push.dense) > 0)
    assert not touched - world.layout.owned(server)
    pull = WantedRows(rows=push.rows, dense=len(push.dense) > 0)
    assert parity.pulled(pull.to_arrays()) == touched


def test_what_is_no_payload_of_parity_is_refused() -> None:
    with pytest.raises(ValueError, match="two arrays for each group and parity"):
        Difference.from_arrays((np.zeros(1, np.int64),), groups=1, parity=1)
    with pytest.raises(ValueError, match="records are words"):
        StripeRecords.from_arrays((np.zeros((1, 1)), np.zeros(1, np.int32)), groups=1)
    with pytest.raises(ValueError, match="an array for each group, and one more"):
        StripeRecords.from_arrays((), groups=1)
