"""In which order a server asks for rows and parities that it lost, where both come at the same time."""

from __future__ import annotations

from collections import Counter

from holdfast.cluster.core.members import Role, View
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.parity_messages import Ask, Given, Refused, Values, Want
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.cluster.shard import Shard
from holdfast.erasure.ring import Ring
from holdfast.policy import SGD, Uniform

SERVERS, BLOCK = 5, 16
DATA = SERVERS - 1


VIEW = View.first(servers=SERVERS, workers=1)


def shard(server: int) -> ShardParity:
    """What a server has."""
    table = TableSpec(name="t.weight", rows=20_000, width=2, init=Uniform(-1, 1))
    placement = Placement(ModelPlan(tables=(table,), dense=(DenseSpec(name="mlp", shape=(SERVERS,)),)), SERVERS)
    ring = Ring(servers=tuple(range(SERVERS)), data=DATA, parity=1)
    layout = RingLayout(placement, ring, block_stripes=BLOCK)
    return ShardParity(layout, Shard(placement, server, SGD(0.1), SGD(0.1)))


def lost(*, soon: int = 0) -> Parity:
    """A new server that has nothing."""
    records = shard(0)
    member = VIEW.member(Role.SERVER, 0)
    return Parity(member, records.layout, records, VIEW, applied=dict, soon=soon, rebuild=True)  # type: ignore[arg-type]


def count(sends: list[Send], asked: Counter[type]) -> None:
    for each in sends:
        assert isinstance(each.message, Want | Ask)
        asked[type(each.message)] += len(each.message.stripes)


def test_as_much_is_asked_for_of_rows_as_of_parities() -> None:
    parity, asked = lost(), Counter[type]()
    while sends := list(parity.advance(both=True)):
        count(sends, asked)
        assert abs(asked[Want] - asked[Ask]) <= DATA * BLOCK + 2  # a block of parities, and dense parts
    assert asked[Want] > 3000 and asked[Ask] > 3000


def test_gently_rows_come_first() -> None:
    parity, asked = lost(), Counter[type]()
    while sends := list(parity.advance()):
        assert not (asked[Ask] and any(isinstance(each.message, Want) for each in sends))
        count(sends, asked)
    assert asked[Want] > 3000 and asked[Ask] > 3000


def test_rows_are_asked_for_by_themselves_only_while_many_are_left() -> None:
    parity, owned, asked = lost(soon=1000), lost()._layout.owned(0), Counter[type]()
    first, last = owned.first(10), owned - owned.first(len(owned) - 10)
    count(list(parity.fetch(first)), asked)
    assert asked[Want] == 10
    while len(owned) - asked[Want] > 1000:
        count(list(parity.advance()), asked)
    assert not list(parity.fetch(last))  # blocks bring them
    while sends := list(parity.advance()):
        count(sends, asked)
    assert asked[Want] == len(owned)


def test_what_pulls_wait_for_is_none_of_the_questions_that_a_rebuild_is_paced_by() -> None:
    parity = lost()
    fetched = [each.message for each in parity.fetch(lost()._layout.owned(0).first(10))]
    assert parity.asked == 0
    assert not any(parity.is_of_block(Given(each.attempt, each.stripes, (), (), {})) for each in fetched)  # type: ignore[union-attr]
    [block] = [each.message for each in parity.advance()]
    assert isinstance(block, Want)
    assert parity.asked == 1
    assert parity.is_of_block(Given(block.attempt, block.stripes, (), (), {}))


def test_what_others_wait_for_is_none_of_these_either() -> None:
    parity, other, replaced = lost(), VIEW.member(Role.SERVER, 1), VIEW.member(Role.SERVER, 2)
    blocks = [each for sends in iter(lambda: list(parity.advance()), []) for each in sends if each.to == other]
    block = next(
        each.message for each in blocks if isinstance(each.message, Ask) and len(each.message.stripes) == BLOCK
    )
    answer = Values(block.attempt, block.stripes, shard(1).give(block.stripes), {})
    assert parity.is_of_block(answer)
    list(parity.handle(other, answer))  # its records are in these parities, and not what server 2 has
    list(parity.adopt_view(VIEW.replacing(replaced)))
    before = parity.asked
    sends = list(parity.handle(other, Want(1, block.stripes, (0,))))
    asks = [each.message for each in sends if isinstance(each.message, Ask)]
    assert asks and parity.asked == before
    assert not any(parity.is_of_block(Values(each.attempt, each.stripes, (), {})) for each in asks)


def test_a_block_that_a_host_refuses_is_lost_to_parity_and_asked_for_no_more() -> None:
    parity = lost()
    [want] = list(parity.advance())
    assert isinstance(want.message, Want)
    list(parity.handle(want.to, Refused(want.message.attempt, want.message.stripes)))
    assert parity.asked == 0 and parity.is_climbing
