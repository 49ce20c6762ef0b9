"""What comes from other servers is moved by a thread of its own, and nobody sees it before it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from holdfast.cluster.core.messages import Copied
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.payload import Changed, Difference
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.parity.unadded import Unadded
from holdfast.cluster.payload import Gradients, WantedRows
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.cluster.server.moves import Movers, Moves
from holdfast.cluster.server.protected_shard import ProtectedShard
from holdfast.cluster.shard import Shard
from holdfast.erasure.ring import Ring
from holdfast.policy import SGD, Uniform

SERVERS, WIDTH, DENSE = 3, 4, 6


class Behind:
    """Something on its way that stays there until this test goes on waiting for it, or a moment has passed."""

    def __init__(self, moves: Moves) -> None:
        self.is_there = False
        self._release = threading.Event()
        moves.begin(self._arrive)
        timer = threading.Timer(0.02, self._release.set)
        timer.daemon = True
        timer.start()

    def _arrive(self) -> None:
        self._release.wait()
        self.is_there = True


class NothingSaved:
    """A part of checkpoints of which there are none."""

    def load(self, checkpoint: str | None, *, replaces: bool) -> None:
        return None

    def load_rows(self, wanted: Any, *, dense: bool) -> None:
        return None

    def adopt(self, *, replaces: bool) -> None: ...

    def begin(self, *, replaces: bool) -> None: ...

    def stay(self) -> None: ...

    def mark(self, group: int, rows: Any) -> None: ...

    def mark_dense(self) -> None: ...

    def survey(self) -> bytes:
        return b""

    def copy(self, save: int, progress: Mapping[int, Any], intent: bytes) -> Copied:
        return Copied(save, "")

    def copy_priority(self, save: int, progress: Mapping[int, Any]) -> Copied:
        return Copied(save, "")

    def call_off(self, save: int) -> None: ...


def protected(server: int) -> ProtectedShard:
    tables = (TableSpec(name="t.weight", rows=200, width=WIDTH, init=Uniform(-1, 1)),)
    placement = Placement(ModelPlan(tables=tables, dense=(DenseSpec(name="mlp", shape=(DENSE,)),)), SERVERS)
    rows = Shard(placement, server, SGD(0.1), SGD(0.1))
    first = np.arange(DENSE, dtype=np.float32)
    rows.start(first)
    layout = RingLayout(placement, Ring(servers=(0, 1, 2), data=2, parity=1))
    return ProtectedShard(rows, NothingSaved(), first, ShardParity(layout, rows), Movers.started())


def push(shard: ProtectedShard) -> dict[int, Any]:
    dense = np.ones(shard._rows.placement.dense[shard._rows.server].size, np.float32)
    count = len(shard._rows.groups[0].weights)
    rows, values = np.arange(count), np.ones((count, WIDTH), np.float32)
    return {0: Gradients(rows=[rows], values=[values], dense=dense, lr_tables=0.1, lr_dense=0.1).to_arrays()}


def changed(shard: ProtectedShard) -> Mapping[int, Any]:
    """What a push changes, by host."""
    shard.update(1, push(shard), shard._parity.layout.none)
    return shard.take_changes()


def difference(shard: ProtectedShard) -> Any:
    changed = [[Changed(np.array([0]), np.ones((1, WIDTH), np.uint32))]]
    return Difference(changed=changed, dense=np.empty(0, np.float32), lr_dense=0.1).to_arrays()


WHO_WAITS_FOR_ROWS: dict[str, Callable[[ProtectedShard], Any]] = {
    "load": lambda shard: shard.load(None),
    "take_dense": lambda shard: shard.take_dense((shard._rows.dense.values.copy(),)),
    "read": lambda shard: shard.read(WantedRows(rows=[np.array([3])], dense=True).to_arrays()),
    "apply": lambda shard: shard.apply(1, push(shard)),
    "copy": lambda shard: shard.copy(1, {}, b""),
    "copy_priority": lambda shard: shard.copy_priority(1, {}),
    "update": lambda shard: shard.update(1, push(shard), shard._parity.layout.none),
    "give": lambda shard: shard.give(shard._parity.layout.owned(0)),
    "fall_back": lambda shard: shard.fall_back(shard._parity.layout.owned(0), None),
    "rebuilt": lambda shard: shard.rebuilt(),
    "wait": lambda shard: shard.wait(),
    "close": lambda shard: shard.close(),
}
WHO_WAITS_FOR_PARITIES: dict[str, Callable[[ProtectedShard], Any]] = {
    "clear": lambda shard: shard.clear(shard._parity.layout.hosted(0)),
    "wait": lambda shard: shard.wait(),
    "close": lambda shard: shard.close(),
}
WHO_CHANGES_ROWS = ("load", "take_dense", "apply", "update", "fall_back")
GOES_ON = {"solve", "add", "absorb"}  # they are what is on its way
READS_WHEN_ALL_IS_THERE = {"accumulator"}  # its syndromes follow what is on its way
READS_NO_ARRAY = {"pulled", "touched", "retold", "survey", "call_off"}
READS_WHAT_IS_THERE = {"take_changes"}  # of rows that an update has changed, which waited for them


@pytest.mark.parametrize("name", WHO_WAITS_FOR_ROWS)
def test_whoever_needs_rows_waits_for_those_on_their_way(name: str) -> None:
    require_wait(lambda shard: shard.row_moves, WHO_WAITS_FOR_ROWS[name])


@pytest.mark.parametrize("name", WHO_CHANGES_ROWS)
def test_whoever_changes_rows_waits_for_those_who_read_them(name: str) -> None:
    require_wait(lambda shard: shard.row_reads, WHO_WAITS_FOR_ROWS[name])


@pytest.mark.parametrize("name", WHO_WAITS_FOR_PARITIES)
def test_whoever_needs_parities_waits_for_those_on_their_way(name: str) -> None:
    require_wait(lambda shard: shard.parity_moves, WHO_WAITS_FOR_PARITIES[name])


def require_wait(moves: Callable[[ProtectedShard], Moves], method: Callable[[ProtectedShard], Any]) -> None:
    """What is under way is there when the method has returned."""
    shard = protected(0)
    behind = Behind(moves(shard))
    method(shard)
    assert behind.is_there
    shard.close()


def test_every_method_of_a_shard_waits_or_has_a_reason_not_to() -> None:
    methods = {name for name in dir(ProtectedShard) if not name.startswith("_")}
    waiting = WHO_WAITS_FOR_ROWS.keys() | WHO_WAITS_FOR_PARITIES.keys()
    assert methods == waiting | GOES_ON | READS_WHEN_ALL_IS_THERE | READS_NO_ARRAY | READS_WHAT_IS_THERE


def test_rows_and_parities_that_were_moved_meanwhile_are_those_that_were_sent() -> None:
    shards = [protected(server) for server in range(SERVERS)]
    for host, shard in enumerate(shards):
        layout = shard._parity.layout
        for member, stripes in layout.by_member(layout.hosted(host)).items():
            shard.add(member, stripes, shards[member].give(stripes).result())
    for server, shard in enumerate(shards):
        expected = shard.give(shard._parity.layout.owned(server)).result()
        shard._rows.groups[0].weights.fill(0)
        for hosts, stripes in shard._parity.layout.by_hosts(shard._parity.layout.owned(server)).items():
            accumulator = shards[hosts[0]].accumulator(stripes)
            for member, theirs in shard._parity.layout.by_member(stripes).items():
                if member != server:
                    accumulator.add(member, theirs, shards[member].give(theirs).result())
            found = Found(stripes, accumulator.syndrome(stripes).result())
            shard.solve(stripes, {hosts[0]: found}, (server,))
        for given, wanted in zip(shard.give(shard._parity.layout.owned(server)).result(), expected, strict=True):
            assert np.array_equal(given, wanted)
    for shard in shards:
        shard.close()


def encoded(shards: list[ProtectedShard], host: int) -> bytes:
    """The parities of a server, encoded from the rows of all."""
    shard = shards[host]
    layout = shard._parity.layout
    shard.clear(layout.hosted(host))
    for member, stripes in layout.by_member(layout.hosted(host)).items():
        shard.add(member, stripes, shards[member].give(stripes).result())
    shard.wait()
    return shard._parity.parities.arrays[0].tobytes()


def test_records_are_those_of_the_moment_at_which_they_were_asked_for() -> None:
    shard = protected(0)
    owned = shard._parity.layout.owned(0)
    expected = shard.give(owned).result()
    behind = Behind(shard.row_reads)
    given = shard.give(owned)
    shard.update(1, push(shard), shard._parity.layout.none)
    assert behind.is_there
    assert all(np.array_equal(one, other) for one, other in zip(given.result(), expected, strict=True))
    assert not all(np.array_equal(one, other) for one, other in zip(shard.give(owned).result(), expected, strict=True))
    shard.close()


def test_a_difference_that_follows_records_on_their_way_is_in_the_parities() -> None:
    shards = [protected(server) for server in range(SERVERS)]
    host = shards[0]
    encoded(shards, 0)
    behind = Behind(host.parity_moves)
    changes = changed(shards[1])
    host.absorb(1, changes[0], host._parity.layout.none)
    assert not behind.is_there
    host.wait()
    found = host._parity.parities.arrays[0].tobytes()
    assert found == encoded(shards, 0)
    for shard in shards:
        shard.close()


def test_a_syndrome_is_of_parities_that_hold_all_differences_so_far() -> None:
    shards = [protected(server) for server in range(SERVERS)]
    host = shards[0]
    layout = host._parity.layout
    encoded(shards, 0)
    stripes = layout.by_hosts(layout.owned(1))[0,] - layout.dense(1)
    accumulator = host.accumulator(stripes)
    for member, theirs in layout.by_member(stripes).items():
        if member != 1:
            accumulator.add(member, theirs, shards[member].give(theirs).result())
    Behind(host.parity_moves)
    host.absorb(1, changed(shards[1])[0], layout.none)
    wanted = shards[1].give(stripes).result()
    shards[1].solve(stripes, {0: Found(stripes, accumulator.syndrome(stripes).result())}, (1,))
    for given, expected in zip(shards[1].give(stripes).result(), wanted, strict=True):
        assert np.array_equal(given, expected)
    for shard in shards:
        shard.close()


def test_records_of_several_members_are_added_together_and_those_of_some_when_parities_are_needed() -> None:
    layout = protected(0)._parity.layout
    unadded, none = Unadded(layout), ()
    first, second = StripeSet.run(0, 4), StripeSet.run(4, 8)
    assert not [*unadded.take(1, first, none), *unadded.take(1, second, none)]
    assert list(unadded.take(2, first, none)) == [(first, {1: none, 2: none})]
    assert list(unadded.rest()) == [(second, {1: none})]
    assert not list(unadded.rest())


def test_what_waits_for_other_members_is_bounded() -> None:
    layout = protected(0)._parity.layout
    unadded, waiting, most = Unadded(layout), 0, 0
    for number in range(100):
        added = list(unadded.take(1, StripeSet.run(number, number + 1), ()))
        waiting += 1 - len(added)
        most = max(most, waiting)
    assert most == 8
    again = StripeSet.run(99, 100)
    assert (again, {1: ()}) in list(unadded.take(1, again, ()))


def test_a_copy_of_a_dense_part_never_waits_for_records_of_others() -> None:
    layout = protected(0)._parity.layout
    (mirrored,) = layout.mirrored(0)
    dense = layout.dense(mirrored)
    assert list(Unadded(layout).take(mirrored, dense, ())) == [(dense, {mirrored: ()})]


class Found:
    """A host's syndrome."""

    def __init__(self, stripes: Any, records: Any) -> None:
        self.stripes, self.records = stripes, records


def test_what_is_moved_comes_in_its_order() -> None:
    movers, seen = Movers.started(), list[int]()
    moves = Moves(movers.of_parities)
    for number in range(50):
        moves.begin(seen.append, number)
    moves.wait()
    assert seen == list(range(50))
    movers.close()


@pytest.mark.parametrize("is_concurrent", [False, True])
def test_what_fails_on_its_way_is_not_taken_for_moved(is_concurrent: bool) -> None:
    movers = Movers.started()
    moves = Moves(movers.of_rows if is_concurrent else None)

    def fail() -> None:
        raise ValueError("no such row")

    def go() -> None:
        moves.begin(fail)
        moves.wait()

    with pytest.raises(ValueError, match="no such row"):
        go()
    movers.close()
