from __future__ import annotations

from itertools import count
from random import Random

import pytest

from holdfast.errors import ObjectExists, ObjectNotFound, StorageFull, StorageUnavailable
from holdfast.runtime import Runtime
from holdfast.storage import MemoryStore, RetryingStore, Store
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.store_suite import StoreSuite


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self._tokens = count()

    def runtime(self) -> Runtime:
        return Runtime(
            monotonic_s=lambda: sum(self.pauses_s),
            sleep=self.pauses_s.append,
            token=lambda: f"{next(self._tokens) * 377:x}",
        )


def faulty(*numbers: int, fault: Fault = Fault.UNAVAILABLE) -> FaultyStore:
    return FaultyStore(MemoryStore(), dict.fromkeys(numbers, fault))


def retrying(store: Store, clock: Clock | None = None, total_s: float = 60.0) -> RetryingStore:
    return RetryingStore(store, total_s=total_s, runtime=(clock or Clock()).runtime())


class TestRetryingStoreInTrouble(StoreSuite):
    """Every third operation fails, at random; nobody notices."""

    @pytest.fixture
    def store(self) -> Store:
        chance = Random(0)
        return retrying(faulty(*(number for number in range(1, 3000) if chance.random() < 0.33)), total_s=600.0)


def test_a_store_that_comes_back_is_waited_for_with_growing_pauses() -> None:
    clock = Clock()
    store = retrying(faulty(1, 2, 3, 4, 5), clock)
    store.put("object", b"content")
    assert bytes(store.get("object")) == b"content"
    assert len(clock.pauses_s) == 5
    for pause_s, bound_s in zip(clock.pauses_s, (0.1, 0.2, 0.4, 0.8, 1.6), strict=True):
        assert bound_s / 2 <= pause_s <= bound_s


def test_a_store_that_stays_away_is_reported_with_how_long_it_was_tried() -> None:
    clock = Clock()
    store = retrying(faulty(*range(1, 1000)), clock, total_s=30.0)
    with pytest.raises(StorageUnavailable, match=r"put of object failed \d+ times in \d+\.\d s; the last time: "):
        store.put("object", b"content")
    assert 10.0 < sum(clock.pauses_s) <= 30.0


def test_whoever_waits_long_is_told_what_for_and_what_will_happen(caplog: pytest.LogCaptureFixture) -> None:
    store = retrying(faulty(*range(1, 1000)), total_s=100.0)
    with pytest.raises(StorageUnavailable):
        store.get("object")
    told = [record.getMessage() for record in caplog.records]
    assert 2 <= len(told) <= 3  # every half minute
    assert all("get of object failed" in each and "retried for up to 100 s" in each for each in told)


def test_what_has_been_under_way_for_longest_is_known() -> None:
    seen: list[str | None] = []

    def look(_: Operation) -> None:
        seen.append(store.oldest.what if store.oldest else None)

    store = retrying(FaultyStore(MemoryStore(), before=look))
    store.put("object", b"content")
    list(store.list("o"))
    assert seen == ["put of object", "list of 'o'"]
    assert store.oldest is None


def test_comparing_what_is_there_does_not_begin_the_patience_anew() -> None:
    clock = Clock()
    store = faulty(1, *range(3, 1000), fault=Fault.UNAVAILABLE)
    store.before = lambda operation: store._store.put("catalog/1", b"theirs") if operation.kind == "put" else None
    with pytest.raises(StorageUnavailable, match="put of catalog/1 failed"):
        retrying(store, clock, total_s=30.0).put("catalog/1", b"ours", create=True)
    assert sum(clock.pauses_s) <= 30.0


def test_other_errors_are_not_tried_again() -> None:
    store = faulty(1, fault=Fault.FULL)
    with pytest.raises(StorageFull):
        retrying(store).put("object", b"content")
    with pytest.raises(ObjectNotFound):
        retrying(store).get("object")
    assert store.operations == 2


def test_a_create_whose_answer_was_lost_is_recognized_as_ours() -> None:
    store = faulty(1, fault=Fault.UNKNOWN)
    retrying(store).put("catalog/1", [b"our ", b"bytes"], create=True)
    assert bytes(store.get("catalog/1")) == b"our bytes"


@pytest.mark.parametrize("theirs", [b"their bytes", b"our byteZ", b"our bytes and more", b""])
def test_a_create_that_lost_while_it_was_retried_has_lost(theirs: bytes) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, {1: Fault.UNAVAILABLE}, before=lambda _: inner.put("catalog/1", theirs))
    with pytest.raises(ObjectExists):
        retrying(store).put("catalog/1", [b"our ", b"bytes"], create=True)
    assert bytes(store.get("catalog/1")) == theirs


def test_a_create_that_lost_at_once_has_lost_even_to_the_same_bytes() -> None:
    store = MemoryStore()
    store.put("catalog/1", b"same")
    with pytest.raises(ObjectExists):
        retrying(store).put("catalog/1", b"same", create=True)


def test_a_list_goes_on_where_it_was_interrupted() -> None:
    inner = MemoryStore()
    for number in range(6):
        inner.put(f"object/{number}", b"")

    class Interrupted(MemoryStore):
        """Breaks off after two objects, every time."""

        def list(self, prefix: str = "", *, after: str = ""):  # type: ignore[no-untyped-def]
            for position, info in enumerate(inner.list(prefix, after=after)):
                if position == 2:
                    raise StorageUnavailable("interrupted")
                yield info

    assert [info.name for info in retrying(Interrupted()).list()] == [f"object/{number}" for number in range(6)]
