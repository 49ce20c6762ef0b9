from __future__ import annotations

import pytest

from holdfast.errors import DamagedData, ObjectNotFound, StorageFull, StorageUnavailable, UnreadableData
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.power import PowerCut
from holdfast.testing.store_suite import StoreSuite


class TestFaultyStoreWithoutFaults(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return FaultyStore(MemoryStore())


def test_faults_happen_at_their_operation_and_leave_no_trace() -> None:
    store = FaultyStore(MemoryStore(), {2: Fault.UNAVAILABLE, 3: Fault.FULL})
    store.put("first", b"")
    with pytest.raises(StorageUnavailable):
        store.put("second", b"")
    with pytest.raises(StorageFull):
        store.put("third", b"")
    assert [info.name for info in store.list()] == ["first"]
    assert store.history == [
        Operation(kind="put", name="first"),
        Operation(kind="put", name="second"),
        Operation(kind="put", name="third"),
        Operation(kind="list", name=""),
    ]


def test_a_bad_read_leaves_the_object_as_it_is() -> None:
    plan = {2: Fault.FLIPPED, 3: Fault.SHORT, 4: Fault.MISSING, 5: Fault.UNREADABLE, 6: Fault.FLIPPED, 7: Fault.SHORT}
    store = FaultyStore(MemoryStore(), plan)
    store.put("object", b"contents")
    assert bytes(store.get("object")) == b"contdnts"
    assert bytes(store.get("object")) == b"cont"
    with pytest.raises(ObjectNotFound):
        store.get("object")
    with pytest.raises(UnreadableData):
        store.get("object")
    assert bytes(store.get_range("object", 2, 6)) == b"ntdn"
    with pytest.raises(DamagedData, match="truncated"):
        store.get_range("object", 2, 6)
    assert bytes(store.get("object")) == b"contents"


def test_an_operation_of_unknown_outcome_was_done() -> None:
    store = FaultyStore(MemoryStore(), {1: Fault.UNKNOWN})
    with pytest.raises(StorageUnavailable):
        store.put("object", b"content")
    assert bytes(store.get("object")) == b"content"


def test_after_a_power_cut_nothing_works_until_it_is_revived() -> None:
    store = FaultyStore(MemoryStore())
    store.put("object", b"content")
    listing = store.list()
    store.plan[3] = Fault.POWER_CUT
    for _ in range(2):
        with pytest.raises(PowerCut):
            store.put("other", b"")
    with pytest.raises(PowerCut):
        next(listing)
    assert store.operations == 3
    store.revive()
    assert [info.name for info in store.list()] == ["object"]


def test_a_delete_can_be_cut_between_two_objects() -> None:
    store = FaultyStore(MemoryStore(), {4: Fault.POWER_CUT})
    store.put("one", b"")
    store.put("two", b"")
    with pytest.raises(PowerCut):
        store.delete(["one", "two"])
    store.revive()
    assert [info.name for info in store.list()] == ["two"]


def test_somebody_else_can_act_before_an_operation() -> None:
    inner = MemoryStore()

    def meanwhile(operation: Operation) -> None:
        if operation.kind == "get":
            inner.delete([operation.name])

    store = FaultyStore(inner, before=meanwhile)
    store.put("object", b"content")
    with pytest.raises(ObjectNotFound):
        store.get("object")
