"""Several writers of one save: it is committed once or never, and all of them learn the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest
import torch

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain, Head
from holdfast.checkpoint.commit.changes import take_over
from holdfast.checkpoint.commit.lease import PREFIX, WRITER, Lease
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.wire.buffer import PAGE
from holdfast.checkpoint.write.committer import Committer
from holdfast.errors import SaveFailed, TakenOver
from holdfast.format.catalog import Entry, Intent, Ref, part_name
from holdfast.format.manifest import Manifest
from holdfast.format.state import JobState, RankState, SavedState, SharedState
from holdfast.policy import KeepAll
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import Fault, FaultyStore, Operation
from holdfast.testing.power import PowerCut
from holdfast.types import Kind
from tests.independent.writing import write_part
from tests.intents import some_intent

WORLD = 4
TABLES = {"emb": {"weight": torch.arange(44.0).reshape(11, 4)}}
tokens = count()


def intent_of(step: int = 1, *, base: str | None = None, world: int = WORLD) -> Intent:
    kind = Kind.INCREMENTAL if base else Kind.FULL
    return some_intent(step, kind=kind, base=base, world=world, token=f"{next(tokens):08x}")


class Writer:
    """One rank's side of a save, up to the commit."""

    def __init__(
        self,
        store: Store,
        intent: Intent,
        rank: int,
        *,
        part_timeout_s: float = 20.0,
        may_come: Callable[[int], bool] = lambda _: False,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._store, self._intent, self._rank = store, intent, rank
        self.committer = Committer(
            store,
            Chain(store, writer=f"rank {rank}"),
            rank=rank,
            retention=KeepAll(),
            part_timeout_s=part_timeout_s,
            may_come=may_come,
            runtime=runtime,
        )

    def write(self) -> tuple[Manifest, Ref]:
        self.committer.publish(self._intent)
        return write_part(self._store, self._intent, self._rank, TABLES, self._state(), {}, PAGE)

    def _state(self) -> object:
        shared = SharedState(job=JobState(), training={"model": {}, "modules": {}, "optimizers": [], "extra": {}})
        return SavedState(rank=RankState(step=self._intent.step), shared=None if self._rank else shared).to_tree()

    def save(self, cancelled: Callable[[], bool] = lambda: False) -> tuple[Entry, Head]:
        return self.committer.commit(self._intent, *self.write(), cancelled)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    Chain(store).commit(take_over())
    return store


def head_of(store: Store) -> Head:
    head = Chain(store).head()
    assert head is not None
    return head


def held(store: Store, intent: Intent) -> bool:
    return intent.checkpoint in head_of(store).by_id


def outcome(act: Callable[[], object]) -> bool:
    """Whether a save was committed, as its writer sees it."""
    try:
        act()
    except SaveFailed:
        return False
    return True


def test_when_all_parts_are_there_one_commit_is_everybodys_success(store: MemoryStore) -> None:
    for step in range(1, 6):
        intent = intent_of(step)
        writers = [Writer(store, intent, rank) for rank in range(WORLD)]
        with ThreadPoolExecutor(WORLD) as pool:
            results = list(pool.map(lambda writer: writer.save(), writers))
        assert head_of(store).catalog.number == step + 1
        assert {entry.info.id for entry, _ in results} == {intent.checkpoint}
        parts = Fetcher(store).parts(head_of(store).by_id[intent.checkpoint])
        assert [part.rank for part in parts] == list(range(WORLD))
        assert [(part.tables[0].start, part.tables[0].stop) for part in parts] == [(0, 2), (2, 5), (5, 8), (8, 11)]
    assert hf.open_run(store).verify() == []


def test_a_part_that_comes_late_is_waited_for(store: MemoryStore) -> None:
    intent = intent_of()
    with ThreadPoolExecutor(WORLD) as pool:
        early = [pool.submit(Writer(store, intent, rank).save) for rank in range(WORLD - 1)]
        assert not held(store, intent)
        assert outcome(Writer(store, intent, WORLD - 1).save)
        assert all(outcome(future.result) for future in early)
    assert head_of(store).catalog.number == 2


def test_when_a_part_is_missing_nobody_commits(store: MemoryStore) -> None:
    intent = intent_of()
    writers = [Writer(store, intent, rank, part_timeout_s=0.2) for rank in (0, 1, 3)]
    with ThreadPoolExecutor(WORLD) as pool:
        saves = [pool.submit(writer.save) for writer in writers]
        errors = [str(future.exception()) for future in saves]
    assert any("ranks [2] did not arrive" in error for error in errors)
    assert all("ranks [2] did not arrive" in error or "cancelled" in error for error in errors)
    assert not held(store, intent)


def in_a_hurry() -> Runtime:
    """A clock on which every pause takes a second."""
    seconds = count()
    return Runtime(monotonic_s=lambda: float(next(seconds)), sleep=lambda _: None)


@pytest.mark.parametrize("dead", [[], [2], [2, 3]])
def test_a_part_is_waited_for_while_its_agent_lives(store: MemoryStore, dead: list[int]) -> None:
    intent = intent_of()
    Writer(store, intent, 1).write()
    at_work = [rank for rank in (0, 2, 3) if rank not in dead] + [1] * bool(dead)  # 1 may be gone: its part is there
    for rank in at_work:
        lease = Lease(kind=WRITER, holder="agent", checkpoints=(intent.checkpoint,), ttl_s=1e6, rank=rank)
        store.put(f"{PREFIX}{WRITER}-{rank:016x}", lease.encode())
    why = rf"the parts of ranks \{dead} are missing, and so are their agents" if dead else "did not arrive within 100 s"
    with pytest.raises(SaveFailed, match=why):
        Writer(store, intent, 0, part_timeout_s=100.0, runtime=in_a_hurry()).save()


@pytest.mark.parametrize("may_come", [[2, 3], [3], []])
def test_a_part_is_waited_for_while_its_rank_may_still_come(store: MemoryStore, may_come: list[int]) -> None:
    intent = intent_of()
    Writer(store, intent, 1).write()
    dead = [rank for rank in (2, 3) if rank not in may_come]
    why = rf"the parts of ranks \{dead} are missing, and so are their agents" if dead else "did not arrive within 100 s"
    writer = Writer(store, intent, 0, part_timeout_s=100.0, may_come=may_come.__contains__, runtime=in_a_hurry())
    with pytest.raises(SaveFailed, match=why):
        writer.save()


def test_a_part_that_comes_after_a_writer_gave_up_commits_nothing(store: MemoryStore) -> None:
    intent = intent_of(world=2)
    with pytest.raises(SaveFailed, match="did not arrive"):
        Writer(store, intent, 0, part_timeout_s=0.0).save()
    with pytest.raises(SaveFailed, match="cancelled"):
        Writer(store, intent, 1).save()
    assert not held(store, intent)


def test_the_others_do_not_wait_for_a_writer_that_gave_up(store: MemoryStore) -> None:
    intent = intent_of()
    cancelled = threading.Event()
    with ThreadPoolExecutor(WORLD) as pool:
        waiting = [pool.submit(Writer(store, intent, rank, part_timeout_s=1e9).save) for rank in (0, 1)]
        given_up = pool.submit(Writer(store, intent, 2).save, cancelled.is_set)
        cancelled.set()
        assert not outcome(given_up.result)
        assert not any(outcome(future.result) for future in waiting)
    assert not held(store, intent)


def test_a_takeover_ends_the_waiting_of_all_writers(store: MemoryStore) -> None:
    intent = intent_of()
    with ThreadPoolExecutor(WORLD) as pool:
        waiting = [pool.submit(Writer(store, intent, rank).save) for rank in (0, 1, 2)]
        Chain(store).commit(take_over())
        assert all(isinstance(future.exception(), TakenOver) for future in waiting)
    with pytest.raises(TakenOver):
        Writer(store, intent, 3).save()
    assert not held(store, intent)


def test_a_save_whose_base_was_dropped_is_not_committed(store: MemoryStore) -> None:
    with pytest.raises(SaveFailed, match="no longer in the run"):
        Writer(store, intent_of(base="s000000000000-t00001-00000000", world=1), 0).save()


class Interrupted:
    """A save of two ranks, all parts written, at whose n-th store operation rank 0 is interrupted."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.intent = intent_of(world=2)
        self.faulty = FaultyStore(store)
        self.first, self.other = Writer(self.faulty, self.intent, 0), Writer(store, self.intent, 1)
        self._part, _ = self.first.write(), self.other.write()
        self._written = self.faulty.operations

    def commit(self) -> None:
        self.first.committer.commit(self.intent, *self._part)

    def at(self, number: int, act: Callable[[], None]) -> None:
        """Let ``act`` happen ahead of that operation of the commit."""

        def before(_: Operation) -> None:
            if self.faulty.operations == self._written + number:
                act()

        self.faulty.before = before

    def cut(self, number: int) -> None:
        """Kill rank 0 there."""
        self.faulty.plan = {self._written + number: Fault.POWER_CUT}

    def give_up(self) -> bool:
        """Rank 1 gives the save up; whether it was committed all the same."""
        return outcome(lambda: self.other.save(cancelled=lambda: True))

    def resolve(self) -> bool:
        """A new agent is asked what became of the save."""
        return self.other.committer.resolve(self.intent.checkpoint) is not None


def commit_operations() -> int:
    store = MemoryStore()
    Chain(store).commit(take_over())
    interrupted = Interrupted(store)
    before = interrupted.faulty.operations
    interrupted.commit()
    return interrupted.faulty.operations - before


MOMENTS = range(1, commit_operations() + 2)


@pytest.mark.parametrize("number", MOMENTS)
def test_one_commits_while_another_gives_up_and_both_learn_the_same(store: MemoryStore, number: int) -> None:
    save = Interrupted(store)
    learnt: list[bool] = []
    save.at(number, lambda: learnt.append(save.give_up()))
    committed = outcome(save.commit)
    if not learnt:
        learnt.append(save.give_up())
    assert learnt == [committed] == [held(store, save.intent)]
    assert head_of(store).catalog.number == 1 + committed


@pytest.mark.parametrize("number", MOMENTS)
def test_one_commits_while_another_asks_and_the_answer_stays_true(store: MemoryStore, number: int) -> None:
    save = Interrupted(store)
    answers: list[bool] = []
    save.at(number, lambda: answers.append(save.resolve()))
    committed = outcome(save.commit)
    answers.append(save.resolve())
    assert set(answers) == {committed} == {held(store, save.intent)}


@pytest.mark.parametrize("number", MOMENTS)
def test_what_a_writer_killed_during_its_commit_left_is_settled_once(store: MemoryStore, number: int) -> None:
    save = Interrupted(store)
    save.cut(number)
    with suppress(PowerCut):
        save.commit()
    answer = save.resolve()
    assert held(store, save.intent) == answer
    assert outcome(save.other.save) == answer
    assert save.resolve() == answer
    assert head_of(store).catalog.number == 1 + answer
    assert hf.open_run(store).verify() == []


def test_a_save_that_never_had_a_part_can_be_settled(store: MemoryStore) -> None:
    intent = intent_of(world=2)
    asked = Writer(store, intent, 0).committer
    assert asked.resolve(intent.checkpoint) is None
    assert asked.resolve(intent.checkpoint) is None
    with pytest.raises(SaveFailed, match="cancelled"):
        Writer(store, intent, 1).save()
    assert part_name(intent.checkpoint, 0) not in {info.name for info in store.list()}


@pytest.mark.parametrize("fault", [Fault.FLIPPED, Fault.SHORT, Fault.MISSING, Fault.UNREADABLE])
def test_one_bad_read_of_another_writers_part_costs_no_save(store: MemoryStore, fault: Fault) -> None:
    intent = intent_of(world=2)
    Writer(store, intent, 1).write()
    own = Writer(store, intent, 0).write()
    copy = MemoryStore()
    for info in store.list():
        copy.put(info.name, store.get(info.name))
    clean = FaultyStore(copy)
    Writer(clean, intent, 0).committer.commit(intent, *own)
    reads = Operation(kind="get", name=part_name(intent.checkpoint, 1))
    spoiled = FaultyStore(store, {clean.history.index(reads) + 1: fault})
    entry, _ = Writer(spoiled, intent, 0).committer.commit(intent, *own)
    assert head_of(store).find(intent.checkpoint) == entry
    assert spoiled.history.count(reads) == 2
