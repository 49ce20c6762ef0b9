"""Catalogs under contention, damage and age."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.checkpoint.commit.chain import Chain, Change, Draft, Head
from holdfast.checkpoint.commit.changes import Clocks, add_checkpoint, add_priority, annotate, go_back, prune, take_over
from holdfast.checkpoint.commit.collect import collect_catalogs
from holdfast.errors import DamagedData, RunError, SaveFailed, TakenOver
from holdfast.format.catalog import (
    CATALOG_PREFIX,
    HISTORY_PREFIX,
    Catalog,
    Entry,
    Ref,
    catalog_name,
    checkpoint_id,
    part_list_name,
)
from holdfast.policy import KeepAll, KeepLast, Retention
from holdfast.storage import MemoryStore, Store
from holdfast.storage.retry import RetryingStore
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.types import CheckpointInfo, Kind

CLOCKS = Clocks(wall_s=lambda: 0.0, store_s=lambda: 0.0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def entry(step: int, term: int = 1) -> Entry:
    identifier = checkpoint_id(step, term, "00c0ffee")
    info = CheckpointInfo(
        id=identifier,
        step=step,
        term=term,
        kind=Kind.FULL,
        parent=None,
        base=None,
        created_s=0.0,
        size_bytes=1,
        rows_written=1,
        full_bytes=1,
    )
    return Entry(info=info, part_list=Ref(name=part_list_name(identifier), size_bytes=1, digest="0" * 64))


def saving(step: int, term: int = 1) -> Change:
    return add_checkpoint(entry(step, term), term=term, retention=KeepAll(), clocks=CLOCKS)


def holding(entries: int) -> Change:
    """A change that makes the run hold steps 0, 1, ... at once."""

    def change(head: Head | None) -> Draft:
        assert head is not None
        items = tuple(entry(step) for step in range(entries))
        return Draft(reason="fill", term=head.catalog.term, head=items[-1].info.id, entries=items)

    return change


def dropping(*steps: int) -> Change:
    def change(head: Head | None) -> Draft:
        assert head is not None
        kept = tuple(item for item in head.entries if item.info.step not in steps)
        return Draft(reason="drop", term=head.catalog.term, head=head.catalog.head, entries=kept)

    return change


def started(store: Store, entries: int = 0) -> Chain:
    chain = Chain(store)
    chain.commit(take_over())
    if entries:
        chain.commit(holding(entries))
    return chain


def newest(store: Store) -> Head:
    head = Chain(store).head()
    assert head is not None
    return head


def steps(head: Head) -> list[int]:
    return [item.info.step for item in head.entries]


def catalogs(store: Store) -> list[str]:
    return [info.name for info in store.list(CATALOG_PREFIX)]


def damage(store: Store, name: str) -> None:
    data = bytearray(store.get(name))
    data[len(data) // 2] ^= 1
    store.put(name, bytes(data))


class Meanwhile:
    """Lets another writer act once, right before a store operation of the first."""

    def __init__(self, store: Store, before: Callable[[Operation], bool], act: Callable[[], object]) -> None:
        self.store = FaultyStore(store, before=self._look)
        self.happened = False
        self._before, self._act = before, act

    def _look(self, operation: Operation) -> None:
        if not self.happened and self._before(operation):
            self.happen()

    def happen(self) -> None:
        self.happened = True
        self._act()


def test_an_empty_run_has_no_head(store: MemoryStore) -> None:
    assert Chain(store).head() is None
    assert catalogs(store) == []


def test_a_commit_is_the_next_number_and_names_its_parent(store: MemoryStore) -> None:
    first = Chain(store).commit(take_over())
    second = Chain(store).commit(saving(1))
    assert catalogs(store) == [catalog_name(1), catalog_name(2)]
    assert second.catalog.parent == first.ref
    assert second.catalog.run == first.catalog.run
    assert second.catalog.lineage == ((1, first.catalog.commit),)
    assert newest(store) == second


def test_the_loser_of_a_race_commits_on_top_of_the_winner(store: MemoryStore) -> None:
    started(store)
    other = Meanwhile(store, lambda operation: operation.kind == "put", lambda: Chain(store).commit(saving(1)))
    head = Chain(other.store).commit(saving(2))
    assert other.happened
    assert steps(head) == steps(newest(store)) == [1, 2]
    assert head.catalog.number == 3


def test_a_change_that_finds_nothing_to_change_commits_nothing(store: MemoryStore) -> None:
    chain = started(store)
    head = chain.commit(saving(1))
    assert Chain(store).commit(saving(1)) == head
    assert catalogs(store) == [catalog_name(1), catalog_name(2)]


def test_a_checkpoint_that_was_dropped_does_not_come_back(store: MemoryStore) -> None:
    chain = started(store)
    chain.commit(saving(1))
    chain.commit(saving(2))
    chain.commit(prune(KeepLast(1), term=1, clocks=CLOCKS))
    with pytest.raises(SaveFailed, match="dropped"):
        chain.commit(saving(1))
    assert steps(newest(store)) == [2]


def test_a_put_whose_answer_was_lost_is_one_commit(store: MemoryStore) -> None:
    started(store)
    faulty = FaultyStore(store)
    chain = Chain(RetryingStore(faulty, first_pause_s=0.001))
    chain.head()
    faulty.plan = {faulty.operations + 2: Fault.UNKNOWN}  # a list, then the put
    head = chain.commit(saving(1))
    assert [operation.kind for operation in faulty.history].count("put") == 2
    assert newest(store) == head
    assert catalogs(store) == [catalog_name(1), catalog_name(2)]


def operations_of(act: Callable[[Chain], object]) -> int:
    """How many store operations a fresh writer needs for it."""
    store = MemoryStore()
    started(store, entries=3)
    faulty = FaultyStore(store)
    act(Chain(faulty))
    return faulty.operations


@pytest.mark.parametrize("number", range(operations_of(lambda chain: chain.commit(saving(5))) + 1))
def test_a_takeover_fences_a_save_at_every_interleaving(store: MemoryStore, number: int) -> None:
    started(store, entries=3)
    taken = Meanwhile(store, lambda _: taken.store.operations == number + 1, lambda: Chain(store).commit(take_over()))
    chain = Chain(taken.store)
    try:
        committed = chain.commit(saving(5))
    except TakenOver:
        assert steps(newest(store)) == [0, 1, 2]
    else:
        assert committed.catalog.term == 1
        assert steps(newest(store)) == [0, 1, 2, 5]
    if not taken.happened:
        taken.happen()
    with pytest.raises(TakenOver, match="Nothing was damaged"):
        chain.commit(saving(6))
    assert newest(store).catalog.term == 2
    assert 6 not in steps(newest(store))


@pytest.mark.parametrize("number", range(operations_of(lambda chain: chain.commit(take_over()))))
def test_of_two_takeovers_at_once_only_the_later_may_commit(store: MemoryStore, number: int) -> None:
    started(store)
    rival = Chain(store)
    other = Meanwhile(store, lambda _: other.store.operations == number + 1, lambda: rival.commit(take_over()))
    chain = Chain(other.store)
    mine = chain.commit(take_over()).catalog.term
    theirs = ({2, 3} - {mine}).pop()
    outcomes = []
    for writer, term in ((chain, mine), (rival, theirs)):
        try:
            writer.commit(saving(term, term))
            outcomes.append(term)
        except TakenOver:
            pass
    assert outcomes == [3]
    assert steps(newest(store)) == [3]


def test_a_commit_into_a_number_that_was_collected_long_ago_does_not_count(store: MemoryStore) -> None:
    others = started(store, entries=2)

    def many_commits() -> None:
        for step in range(10, 60):
            others.commit(saving(step))
        collect_catalogs(store, others, term=1)
        assert catalog_name(3) not in catalogs(store)

    late = Meanwhile(store, lambda operation: operation.kind == "put", many_commits)
    with pytest.raises(RunError, match="does not count"):
        Chain(late.store).commit(saving(5))
    assert catalog_name(3) in catalogs(store)
    assert newest(store).catalog.number == 52
    assert 5 not in steps(newest(store))
    others.commit(saving(60))
    assert 5 not in steps(newest(store))
    collect_catalogs(store, others, term=1)
    assert catalog_name(3) not in catalogs(store)


def test_a_writer_that_slept_through_a_few_commits_still_counts(store: MemoryStore) -> None:
    others = started(store)
    late = Meanwhile(store, lambda operation: operation.kind == "put", lambda: [others.commit(saving(1))])
    chain = Chain(late.store)
    chain.commit(saving(2))
    assert steps(newest(store)) == [1, 2]


def test_commits_of_others_between_ours_and_its_confirmation_do_not_hide_it(store: MemoryStore) -> None:
    others = started(store)
    seen: list[Operation] = []

    def after_the_put(operation: Operation) -> bool:
        seen.append(operation)
        return operation.kind == "list" and any(earlier.kind == "put" for earlier in seen)

    late = Meanwhile(store, after_the_put, lambda: [others.commit(saving(step)) for step in range(10, 20)])
    assert steps(Chain(late.store).commit(saving(1))) == [1]
    assert steps(newest(store)) == [1, *range(10, 20)]


def test_a_commit_is_known_to_count_however_long_its_writer_sleeps_before_it_looks(store: MemoryStore) -> None:
    others = started(store)
    seen: list[Operation] = []

    def after_the_put(operation: Operation) -> bool:
        seen.append(operation)
        return operation.kind == "list" and any(earlier.kind == "put" for earlier in seen)

    def many_commits() -> None:
        for step in range(10, 60):
            others.commit(saving(step))
        collect_catalogs(store, others, term=1)

    late = Meanwhile(store, after_the_put, many_commits)
    assert steps(Chain(late.store).commit(saving(1))) == [1, *range(10, 60)]


@pytest.mark.parametrize("seed", range(8))
def test_what_counts_is_listed_and_what_does_not_is_not_whoever_sleeps_how_long(store: MemoryStore, seed: int) -> None:
    chance = random.Random(seed)
    others = started(store)
    fresh = itertools.count(1000)

    def life_goes_on() -> None:
        for _ in range(chance.choice([1, 5, 31, 32, 33, 40, 70])):
            others.commit(saving(next(fresh)))
            if chance.random() < 0.2:
                collect_catalogs(store, others, term=1)

    counted, refused = set(), set()
    for step in range(12):
        asleep_at = chance.randrange(1, 6)
        seen = itertools.count(1)
        late = Meanwhile(store, lambda _, at=asleep_at, seen=seen: next(seen) >= at, life_goes_on)
        try:
            Chain(late.store).commit(saving(step))
            counted.add(step)
        except RunError:
            refused.add(step)
    listed = set(steps(newest(store)))
    assert counted <= listed
    assert not refused & listed


@pytest.mark.parametrize("skip_damaged", [False, True])
def test_a_reader_whose_catalog_is_collected_under_its_eyes_reads_the_newer_one(
    store: MemoryStore, skip_damaged: bool
) -> None:
    others = started(store, entries=200)

    def many_commits() -> None:
        for step in range(300, 340):
            others.commit(saving(step))
        others.commit(dropping(0))
        collect_catalogs(store, others, term=1)

    late = Meanwhile(store, lambda operation: operation.kind == "get", many_commits)
    head = Chain(late.store).head(skip_damaged=skip_damaged)
    assert late.happened
    assert head == newest(store)
    assert head is not None and head.damaged == ()


def test_a_damaged_head_stops_everyone_but_a_takeover(store: MemoryStore) -> None:
    chain = started(store)
    chain.commit(saving(1))
    bystander = Chain(store)
    bystander.head()
    chain.commit(saving(2))
    damage(store, catalog_name(3))
    for reader in (Chain(store), bystander):
        with pytest.raises(DamagedData, match=catalog_name(3)):
            reader.head()
        with pytest.raises(DamagedData, match=catalog_name(3)):
            reader.commit(saving(3))
        head = reader.head(skip_damaged=True)
        assert head is not None
        assert steps(head) == [1]
        assert head.damaged == (catalog_name(3),)
        with pytest.raises(DamagedData, match=catalog_name(3)):
            reader.commit(annotate(entry(1).info.id, {"auc": 1.0}, term=None))
    assert catalogs(store) == [catalog_name(number) for number in (1, 2, 3)]
    assert bystander.commit(take_over(), skip_damaged=True).catalog.number == 4
    assert steps(newest(store)) == [1]
    assert newest(store).catalog.term == 2
    with pytest.raises(TakenOver):
        chain.commit(saving(3))


def test_a_run_without_a_readable_catalog_is_left_alone(store: MemoryStore) -> None:
    started(store)
    damage(store, catalog_name(1))
    for _ in range(2):
        with pytest.raises(DamagedData, match="nothing was changed"):
            Chain(store).head(skip_damaged=True)
    assert catalogs(store) == [catalog_name(1)]


def test_a_catalog_under_a_wrong_number_is_damaged(store: MemoryStore) -> None:
    started(store)
    store.put(catalog_name(2), store.get(catalog_name(1)))
    with pytest.raises(DamagedData, match="claims to be catalog 1"):
        Chain(store).head()


def test_going_back_abandons_what_was_ahead_also_inside_pages(store: MemoryStore) -> None:
    chain = started(store, entries=200)
    head = chain.commit(go_back(entry(30).info.id, term=1, store_s=chain.store_s))
    assert [item.info.step for item in head.entries if not item.info.abandoned] == list(range(31))
    assert newest(store) == head


def rows_on(base: int, step: int) -> Entry:
    """A priority save on top of the checkpoint of step ``base``."""
    save = entry(step)
    info = replace(save.info, kind=Kind.PRIORITY, parent=entry(base).info.id, base=entry(base).info.id)
    return replace(save, info=info)


def rows_of(head: Head) -> list[int]:
    return [each.info.step for each in head.catalog.priority]


def test_priority_saves_stand_beside_the_checkpoints_until_the_next_one(store: MemoryStore) -> None:
    chain = started(store)
    chain.commit(saving(10))
    for step in (12, 14, 14):  # committing one twice is one commit
        head = chain.commit(add_priority(rows_on(10, step), term=1))
    assert (steps(head), rows_of(head), head.catalog.head) == ([10], [12, 14], entry(10).info.id)
    assert newest(store) == head and head.catalog.number == 4
    assert rows_of(chain.commit(annotate(entry(10).info.id, {"auc": 1.0}, term=1))) == [12, 14]
    assert rows_of(chain.commit(prune(KeepLast(1), term=1, clocks=CLOCKS))) == [12, 14]
    head = chain.commit(saving(20))
    assert (steps(head), rows_of(head)) == ([10, 20], [])
    assert [item.folder for item in head.garbage] == [entry(12).info.id, entry(14).info.id]


def test_priority_saves_that_come_too_late_are_refused(store: MemoryStore) -> None:
    chain = started(store)
    chain.commit(saving(10))
    chain.commit(add_priority(rows_on(10, 12), term=1))
    chain.commit(saving(20))
    for late in (rows_on(10, 14), rows_on(10, 12)):  # a new one, and one that was dropped
        with pytest.raises(SaveFailed):
            chain.commit(add_priority(late, term=1))
    chain.commit(take_over())
    with pytest.raises(TakenOver):
        chain.commit(add_priority(rows_on(20, 22), term=1))


@pytest.mark.parametrize(("to", "reason"), [(10, "go back"), (20, "drop rows")])
def test_going_back_drops_priority_saves_even_those_on_the_same_checkpoint(
    store: MemoryStore, to: int, reason: str
) -> None:
    chain = started(store)
    chain.commit(saving(10))
    chain.commit(saving(20))
    chain.commit(add_priority(rows_on(20, 22), term=1))
    head = chain.commit(go_back(entry(to).info.id, term=1, store_s=chain.store_s))
    assert rows_of(head) == [] and head.catalog.reason == reason
    assert [item.folder for item in head.garbage] == [entry(22).info.id]
    assert [item.info.abandoned for item in head.entries] == [False, to == 10]


@pytest.mark.parametrize("retention", [KeepAll(), KeepLast(3), KeepLast(400)], ids=str)
def test_what_a_commit_writes_and_reads_does_not_grow_with_the_run(store: MemoryStore, retention: Retention) -> None:
    faulty = FaultyStore(store)
    chain = started(faulty)
    catalog_bytes, operations = [], []
    for step in range(1, 1025):
        before = faulty.operations
        head = chain.commit(add_checkpoint(entry(step), term=1, retention=retention, clocks=CLOCKS))
        operations.append(faulty.operations - before)
        catalog_bytes.append(head.ref.size_bytes)
    page_bytes = sum(info.size_bytes for info in store.list(HISTORY_PREFIX))
    assert max(catalog_bytes[512:]) < 1.2 * max(catalog_bytes[:512]) < 20_000
    assert max(operations) == min(operations) + 1  # a list, the catalog, a list; now and then a page
    assert page_bytes < 1024 * 500 * 10  # each entry, and what is left of it, at most log2(1024) times
    assert len(head.catalog.pages) <= 10
    assert newest(store) == head


def test_a_reader_does_not_read_pages_again_that_it_knows(store: MemoryStore) -> None:
    chain = started(store)
    faulty = FaultyStore(store)
    follower = Chain(faulty)
    read = []
    for step in range(300):
        chain.commit(saving(step))
        before = len(faulty.history)
        assert follower.head() == chain.head()
        read.append([operation.name for operation in faulty.history[before:] if operation.kind == "get"])
    pages = [name for names in read for name in names if name.startswith(HISTORY_PREFIX)]
    assert len(pages) == len(set(pages))
    assert max(map(len, read)) <= 2


def test_what_came_and_went_between_two_pages_leaves_no_trace(store: MemoryStore) -> None:
    chain = started(store)
    for step in range(200):
        chain.commit(saving(step))
    chain.commit(dropping(*range(150)))
    chain.commit(annotate(entry(170).info.id, {"auc": 0.8}, term=1))
    head = newest(store)
    assert steps(head) == list(range(150, 200))
    assert [each.page.items for each in head.pages] == [50]
    assert head.by_id[entry(170).info.id].info.metrics == {"auc": 0.8}
    assert steps(head).index(170) == 20


def test_a_page_stays_as_long_as_a_catalog_names_it(store: MemoryStore) -> None:
    """A takeover may have to fall back on any of the catalogs that are kept."""
    chain = started(store)
    for step in range(300):
        chain.commit(saving(step))
        if step % 7 == 0:
            collect_catalogs(store, chain, term=1)
            for name in catalogs(store):
                named = [page.ref.name for page in Catalog.decode(store.get(name), name=name).pages]
                assert all(store.get(page) for page in named)
    collect_catalogs(store, chain, term=1)
    assert len(catalogs(store)) == 33
    assert len(list(store.list(HISTORY_PREFIX))) <= 12


@pytest.mark.parametrize("how", ["flipped", "missing", "exchanged"])
def test_a_damaged_page_damages_its_catalog(store: MemoryStore, how: str) -> None:
    chain = started(store, entries=300)
    for step in range(300, 340):
        chain.commit(saving(step))
    names = [page.ref.name for page in newest(store).catalog.pages]
    if how == "flipped":
        damage(store, names[1])
    elif how == "missing":
        store.delete([names[1]])
    else:
        store.put(names[1], store.get(names[0]))
    with pytest.raises(DamagedData, match=names[1]):
        Chain(store).head()


def test_head_is_read_from_its_pages_and_catalog_alike(store: MemoryStore) -> None:
    chain = started(store, entries=300)
    known = chain.head()
    assert known is not None
    assert known == newest(store)
    assert list(known.by_id) == list(newest(store).by_id)


def test_a_listed_checkpoint_takes_less_than_a_kilobyte_of_memory(store: MemoryStore) -> None:
    chain, count = started(store), 600
    for step in range(count):
        chain.commit(saving(step))
    tracemalloc.start()
    try:
        found = newest(store)  # as an agent that takes the run over reads it
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.entries) == count and len(found.pages) > 1
    assert taken / count < 1024
