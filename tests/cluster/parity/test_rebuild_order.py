"""In which order a server asks for rows and parities that it lost, where both come at the same time."""

from __future__ import annotations

from collections import Counter

from holdfast.cluster.core.members import Member, Role, View
from holdfast.cluster.core.messages import Send
from holdfast.cluster.core.parity import Parity
from holdfast.cluster.core.parity_messages import Ask, Want
from holdfast.cluster.parity.layout import RingLayout
from holdfast.cluster.parity.shard_parity import ShardParity
from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.cluster.shard import Shard
from holdfast.erasure.ring import Ring
from holdfast.policy import SGD, Uniform

SERVERS, BLOCK = 5, 16
DATA = SERVERS - 1


def lost(*, soon: int = 0) -> Parity:
    """A new server that has nothing."""
    table = TableSpec(name="t.weight", rows=20_000, width=2, init=Uniform(-1, 1))
    placement = Placement(ModelPlan(tables=(table,), dense=(DenseSpec(name="mlp", shape=(SERVERS,)),)), SERVERS)
    ring = Ring(servers=tuple(range(SERVERS)), data=DATA, parity=1)
    layout = RingLayout(placement, ring, block_stripes=BLOCK)
    records = ShardParity(layout, Shard(placement, 0, SGD(0.1), SGD(0.1)))
    view = View.first(servers=SERVERS, workers=1)
    return Parity(Member(Role.SERVER, 0, 1), layout, records, view, applied=dict, soon=soon, rebuild=True)  # type: ignore[arg-type]


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
