"""Rules that too few schedules of the simulation show, each in a scene of its own, with and without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.cluster.core.agreement import Agreement
from holdfast.cluster.core.members import CONTROLLER, Member, Role, View
from holdfast.cluster.core.messages import Hello, Lost, Pull, Push, Rows, Send
from holdfast.cluster.core.parity_host import ParityHost
from holdfast.cluster.core.parity_messages import (
    Ask,
    Difference,
    Dropped,
    FallBack,
    Fell,
    Given,
    Rebuild,
    Reconcile,
    Refused,
    Values,
    Want,
)
from holdfast.cluster.core.peers import Peers
from holdfast.cluster.core.possession import Possession
from holdfast.cluster.core.progress import BEGINNING, Progress
from holdfast.cluster.core.server import ServerCore
from holdfast.cluster.core.stripes import Protection
from tests.cluster.core import mutant_parity as mutants
from tests.cluster.core.model import BrokenPromise, Part, SavedRow, Storage
from tests.cluster.core.striped import DENSE, Ledger, Rotation, StripedShard, Striping
from tests.cluster.core.world import Cores

LAYOUT = Rotation((2, 2, 2, 2), data=2, parity=2)
STRIPE = next(stripe for stripe, members in LAYOUT.members.items() if len(members) == 2)
MINE, OTHER = LAYOUT.members[STRIPE]
FIRST, SECOND = LAYOUT.hosts[STRIPE]
ROW = LAYOUT.row[MINE][STRIPE]
WORKER = Member(Role.WORKER, 0, 1)


def server(index: int, incarnation: int = 1) -> Member:
    return Member(Role.SERVER, index, incarnation)


class Scene:
    """One server that lost its rows, and what its hosts would say."""

    def __init__(self) -> None:
        self.striping = Striping(LAYOUT, Ledger(), seed=0)
        first = {row: self.striping.ledger.first(MINE, row) for row in LAYOUT.rows[MINE]}
        self.storage = Storage(Part({row: SavedRow(record=record) for row, record in first.items()}))
        self.shard = StripedShard(MINE, self.striping, self.storage, set(), None)
        self.mine, self.other = first[ROW], self.striping.ledger.first(OTHER, 0)
        self.asked: dict[int, int] = {}  # by host that the server asks for the row, the attempt

    def sum(self, host: int) -> dict[int, int]:
        """Of both rows, as this host gives it."""
        sums = {STRIPE: 0}
        self.shard._take(sums, host, STRIPE, MINE, self.mine)
        self.shard._take(sums, host, STRIPE, OTHER, self.other)
        return sums

    def alone(self, host: int) -> dict[int, int]:
        """Of the row of this server."""
        sums = {STRIPE: 0}
        self.shard._take(sums, host, STRIPE, MINE, self.mine)
        return sums

    def given(self, host: int, want: Want) -> Given:
        """All rows of this server that a host is asked for."""
        sums = dict.fromkeys(want.stripes, 0)
        for stripe in want.stripes:
            row = LAYOUT.row[MINE][stripe]
            self.shard._take(sums, host, stripe, MINE, self.striping.ledger.first(MINE, row))
        return Given(want.attempt, want.stripes, sums, (server(MINE),), {})


def wants(sends: list[Send]) -> list[tuple[int, int]]:
    """Who is asked for rows, in which attempt."""
    return [(each.to.index, each.message.attempt) for each in sends if isinstance(each.message, Want)]


def solve_while_the_other_changes(possession: type[Possession]) -> None:
    """The other server gets its row between what the first host gives and what the second does, and dies again."""
    scene, peers = Scene(), Peers(View.first(servers=4, workers=1))
    rows = possession(MINE, LAYOUT, scene.shard, peers, rebuild=True)
    stripes = frozenset({STRIPE})
    [(host, attempt)] = wants(list(rows.fetch(stripes)))
    lost = (server(MINE), server(OTHER))
    [(second, next_attempt)] = wants(list(rows.given(host, Given(attempt, stripes, scene.sum(host), lost, {}))))
    scene.other ^= 0xABCDEF
    peers.adopt(server(OTHER, 2))
    rows.adopt(OTHER)
    lost = (server(MINE), server(OTHER, 2))
    again = wants(list(rows.given(second, Given(next_attempt, stripes, scene.sum(second), lost, {}))))
    assert again[0][0] == host
    list(rows.given(host, Given(again[0][1], stripes, scene.sum(host), lost, {})))
    assert scene.shard.rows == {ROW: scene.mine}


def test_sums_of_rows_of_other_lives_are_not_added_up() -> None:
    solve_while_the_other_changes(Possession)


def test_without_that_rule_the_row_is_wrong() -> None:
    with pytest.raises(BrokenPromise, match="is wrong"):
        solve_while_the_other_changes(mutants.AddsUpOtherLives)


# ---- a server that gets a row, and has a push for it ----------------------------------------------------------------


def a_push() -> Push:
    """One that changes the row, and no other but the dense part."""
    touched = Scene().striping.touched
    number = next(each for each in range(1, 1000) if set(touched(MINE, 0, each)) == {ROW, DENSE})
    return Push(1, (0, number, 0), 1, BEGINNING)


def rebuilding(cores: Callable[..., ServerCore]) -> tuple[Scene, ServerCore]:
    """A server that was told to rebuild its rows, has its dense part, and a push of a worker that waits for the row."""
    scene = Scene()
    core = cores(server(MINE), scene.shard, protection=Protection(LAYOUT, scene.shard))
    core.handle(CONTROLLER, Rebuild(View.first(servers=4, workers=1), {}))
    core.handle(WORKER, Hello(BEGINNING, BEGINNING))
    sends = core.handle(WORKER, a_push())
    dense = LAYOUT.rows[MINE][DENSE]
    for each in sends:
        if isinstance(each.message, Want) and dense in each.message.stripes:
            record = {dense: scene.striping.ledger.first(MINE, DENSE)}
            given = Given(each.message.attempt, frozenset({dense}), record, (server(MINE),), {})
            core.handle(each.to, given)
    scene.asked = dict(wants([each for each in sends if STRIPE in stripes_of(each)]))
    return scene, core


def stripes_of(send: Send) -> frozenset[int]:
    return send.message.stripes if isinstance(send.message, Want) else frozenset()


def order_at(host: int, cores: Callable[..., ServerCore]) -> list[type]:
    """What a host that waits for the row hears when it comes."""
    scene, core = rebuilding(cores)
    core.handle(server(host), Ask(7, frozenset({STRIPE}), LAYOUT.hosts[STRIPE]))
    [(asked, attempt)] = scene.asked.items()
    given = Given(attempt, frozenset({STRIPE}), scene.alone(asked), (server(MINE),), {})
    sends = core.handle(server(asked), given)
    return [type(each.message) for each in sends if each.to.index == host and concerns_stripe(each.message)]


def concerns_stripe(message: Any) -> bool:
    return (isinstance(message, Values) and STRIPE in message.stripes) or (
        isinstance(message, Difference) and STRIPE in message.records
    )


def test_a_row_that_came_is_given_to_who_waits_before_a_push_changes_it() -> None:
    assert order_at(SECOND, ServerCore) == [Values, Difference]


def test_without_that_rule_a_host_hears_of_the_change_first() -> None:
    changed: Cores = mutants.protected(parity=mutants.ChangesRowsFirst)
    assert order_at(SECOND, changed.server) == [Difference, Values]


def uses_of_a_saved_row(cores: Callable[..., ServerCore]) -> list[bool]:
    """Whether the row is pulled from a save, after the order to take it and after each host's answer."""
    scene, core = rebuilding(cores)
    core.handle(WORKER, Pull(1, (MINE, 0, a_push().gradients[1]), 0))
    [(asked, attempt)] = scene.asked.items()
    other = SECOND if asked == FIRST else FIRST
    sends = core.handle(server(asked), Refused(attempt, frozenset({STRIPE})))
    [(_, attempt)] = wants(sends)
    core.handle(server(other), Refused(attempt, frozenset({STRIPE})))
    while not core.is_climbing or core._protected[0]._rows.unasked:  # type: ignore[index]
        for each in core.advance():
            core.handle(each.to, Refused(each.message.attempt, each.message.stripes))  # type: ignore[union-attr]
    heard = [core.handle(CONTROLLER, FallBack())]
    fell = [each for each in heard[0] if isinstance(each.message, Fell)]
    for host in (asked, other):
        drops = [Dropped(each.message.stripes, 1) for each in fell if each.to.index == host]  # type: ignore[union-attr]
        heard.append([send for each in drops for send in core.handle(server(host), each)])
    return [any(isinstance(each.message, Rows) for each in sends) for sends in heard]


def test_a_saved_row_is_used_when_both_hosts_have_dropped_the_former() -> None:
    assert uses_of_a_saved_row(ServerCore) == [False, False, True]


def test_rows_from_saves_lack_what_came_since_the_checkpoint_although_some_were_saved_later() -> None:
    """A priority save holds one of them with 4 pushes; the checkpoint holds all with 2. The worker knows of 3."""
    scene = Scene()
    for row, saved in scene.storage.rows.items():
        pushed = 4 if row == ROW else 2
        scene.storage.rows = {**scene.storage.rows, row: replace(saved, progress={0: Progress(pushed, None)})}
    core = ServerCore(server(MINE), scene.shard, protection=Protection(LAYOUT, scene.shard))
    core.handle(CONTROLLER, Rebuild(View.first(servers=4, workers=1), {}))
    sends = core.handle(WORKER, Hello(Progress(3, None), BEGINNING))
    while asked := [each for each in (*sends, *core.advance()) if isinstance(each.message, Want)]:
        answers = [(each.to, Refused(each.message.attempt, each.message.stripes)) for each in asked]  # type: ignore[union-attr]
        sends = [send for host, refused in answers for send in core.handle(host, refused)]
    told = [each.message for each in core.handle(CONTROLLER, FallBack()) if isinstance(each.message, Lost)]
    assert told == [Lost(0, 2)]


def test_without_that_rule_it_is_used_at_once() -> None:
    at_once: Cores = mutants.protected(rows=mutants.UsesSavedRowsAtOnce)
    assert uses_of_a_saved_row(at_once.server) == [True, False, False]


# ---- a server in step that hears of the last worker when all its rows are there --------------------------------------


def answers_to_the_last_hello(cores: Callable[..., ServerCore]) -> list[type]:
    """What it sends to the first worker, whose pull came before."""
    scene = Scene()
    core = cores(server(MINE), scene.shard, synchronous=True, protection=Protection(LAYOUT, scene.shard))
    core.handle(CONTROLLER, Rebuild(View.first(servers=4, workers=2), {}))
    core.handle(WORKER, Hello(BEGINNING, BEGINNING))
    asked = core.handle(WORKER, Pull(1, (MINE, 0, 1), 0))
    while asked := [*asked, *core.advance()]:
        each, *asked = asked
        if isinstance(each.message, Want):
            given = scene.given(each.to.index, each.message)
            asked.extend(core.handle(each.to, given))
    sends = core.handle(Member(Role.WORKER, 1, 1), Hello(BEGINNING, BEGINNING))
    return [type(each.message) for each in sends if each.to == WORKER]


def test_a_pull_that_came_before_the_last_hello_is_answered_with_it() -> None:
    assert Rows in answers_to_the_last_hello(ServerCore)


def test_without_that_rule_nobody_ever_answers_it() -> None:
    later: Cores = mutants.protected(pace=mutants.BeginsWithoutPulls)
    assert Rows not in answers_to_the_last_hello(later.server)


# ---- two hosts of a row that came from a save -----------------------------------------------------------------------


class Host:
    """One of the two, which knows all servers."""

    def __init__(self, index: int, striping: Striping) -> None:
        self.member, self._peers = server(index), Peers(View.first(servers=4, workers=1))
        self.core = ParityHost(index, LAYOUT, StripedShard(index, striping, Storage(), set(), None), self._peers)

    def adopt(self, incarnation: int) -> list[Send]:
        """The server has died again."""
        self._peers.adopt(server(MINE, incarnation))
        return list(self.core.adopt(MINE))

    def encode(self, records: dict[int, int]) -> None:
        """The parity of the stripe, from records that hold nothing but what was saved."""
        for each in list(self.core._complete(frozenset({STRIPE}), is_block=False)):
            given = {STRIPE: records[each.to.index]}
            list(self.core.values(each.to, Values(each.message.attempt, frozenset({STRIPE}), given, {})))  # type: ignore[union-attr]

    def give(self, other: int, record: int) -> Given:
        """The row of the server, decoded with that of the other one."""
        list(self.core.agreed(other, MINE))
        stripes = frozenset({STRIPE})
        [asked] = self.core.want(self._peers.member(MINE), Want(1, stripes, LAYOUT.hosts[STRIPE]))
        answer = Values(asked.message.attempt, stripes, {STRIPE: record}, {})  # type: ignore[union-attr]
        [given] = [each.message for each in self.core.values(server(OTHER), answer)]
        assert isinstance(given, Given)
        return given


def pushes_of_a_saved_row(agreement: type[Agreement]) -> int:
    """How many a host says that it holds, if the other one kept a push to the row that was lost."""
    scene = Scene()
    keeper, giver = Host(FIRST, scene.striping), Host(SECOND, scene.striping)
    keeper.core._agreement.__class__ = agreement
    list(keeper.core.difference(server(MINE), Difference({0: 1}, {STRIPE: 0xABCDEF})))
    for host in (keeper, giver):
        host.adopt(2)
        list(host.core.fell(server(MINE, 2), Fell(frozenset({STRIPE}))))
    giver.encode({MINE: scene.mine, OTHER: scene.other})
    giver.adopt(3)
    [told] = [each.message for each in keeper.adopt(3) if each.to == giver.member]
    assert isinstance(told, Reconcile)
    list(giver.core.reconcile(keeper.member, told))
    given = giver.give(FIRST, scene.other)
    assert given.records == scene.alone(SECOND)
    return given.held.get(0, 0)


def test_a_saved_row_does_not_hold_what_a_host_kept_of_the_lost_one() -> None:
    assert pushes_of_a_saved_row(Agreement) == 0


def test_without_that_rule_a_push_that_comes_again_is_skipped() -> None:
    assert pushes_of_a_saved_row(mutants.TellsForSavedRows) == 1


# ---- a host that drops a parity while it decodes with it -------------------------------------------------------------


def parity_after_an_old_answer(kind: type[ParityHost]) -> tuple[int, int]:
    """What a host has of a stripe, and what it should have, once a member has answered two questions for its record.

    The first was for a decoding, which ended when another member had a row from a save. In the second the host asks for
    the record of another stripe as well.
    """
    layout = Rotation((6,) * 5, data=3, parity=2)
    stripe, peers, stripes = 0, Peers(View.first(servers=5, workers=1)), frozenset({0, 5})
    shard = StripedShard(layout.hosts[stripe][0], Striping(layout, Ledger(), seed=0), Storage(), set(), None)
    host, (lost, other, fallen) = kind(shard.index, layout, shard, peers), layout.members[stripe]

    def answer(ask: Send) -> None:
        asked: Any = ask.message
        values = Values(asked.attempt, asked.stripes, dict.fromkeys(asked.stripes, 1 << ask.to.index), {})
        list(host.values(ask.to, values))

    for each in list(host._complete(stripes, is_block=False)):
        answer(each)
    peers.adopt(server(lost, 2))
    list(host.adopt(lost))
    list(host.agreed(layout.hosts[stripe][1], lost))
    decoding = list(host.want(server(lost, 2), Want(1, frozenset({stripe}), layout.hosts[stripe])))
    list(host.fell(server(fallen), Fell(stripes)))
    encoding = list(host._complete(stripes, is_block=False))
    for each in [*decoding, *encoding]:
        if each.to.index == other:
            answer(each)
    expected = {stripe: 0}
    shard._take(expected, shard.index, stripe, other, 1 << other)
    return shard.parities[stripe], expected[stripe]


def test_an_answer_to_an_older_attempt_is_added_to_no_parity() -> None:
    parity, expected = parity_after_an_old_answer(ParityHost)
    assert parity == expected


def test_without_that_rule_a_record_is_added_twice() -> None:
    parity, expected = parity_after_an_old_answer(mutants.TakesAnyAnswer)
    assert parity != expected
