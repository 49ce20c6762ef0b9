"""What a run's catalogs tell of its trainers, also when the older of them are gone."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.commit import chain as chain_module
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import Clocks, add_checkpoint, go_back, take_over
from holdfast.checkpoint.commit.collect import collect_catalogs
from holdfast.checkpoint.inspect.history import read_history
from holdfast.events import Happening, HistoryEvent
from holdfast.format.catalog import CATALOG_PREFIX, Entry, Ref
from holdfast.policy import KeepAll
from holdfast.storage import MemoryStore
from holdfast.types import CheckpointInfo, Kind

NOW = Clocks(wall_s=lambda: 0.0, store_s=lambda: 0.0)


def save(chain: Chain, step: int, term: int, created_s: float, parent: str | None) -> str:
    info = CheckpointInfo(
        id=f"{term}-{step}", step=step, term=term, kind=Kind.FULL, parent=parent, base=None, created_s=created_s,
        size_bytes=1, rows_written=1, full_bytes=1,
    )  # fmt: skip
    entry = Entry(info=info, part_list=Ref(name="r", size_bytes=1, digest="d"))
    chain.commit(add_checkpoint(entry, term=term, retention=KeepAll(), clocks=NOW))
    return info.id


def told(store: MemoryStore) -> list[HistoryEvent]:
    head = Chain(store).head(skip_damaged=True)
    assert head is not None
    return list(read_history(head))


def life(store: MemoryStore) -> None:
    """Two trainers; the second one goes back from step 20 to step 10."""
    chain = Chain(store, writer="a trainer")
    chain.commit(take_over())
    first = save(chain, 10, 1, 100.0, None)
    save(chain, 20, 1, 200.0, first)
    chain.commit(take_over())
    chain.commit(go_back(first, term=2, store_s=NOW.store_s))
    save(chain, 15, 2, 300.0, first)


def test_every_start_and_every_way_back_is_told() -> None:
    store = MemoryStore()
    life(store)
    began, took_over, went_back = told(store)
    assert (began.what, began.term, began.writer) == (Happening.BEGAN, 1, "a trainer")
    assert (took_over.what, took_over.term, took_over.from_step) == (Happening.TOOK_OVER, 2, 20)
    assert took_over.idle_s == took_over.at_s - 200.0
    assert (went_back.what, went_back.from_step, went_back.abandoned) == (Happening.WENT_BACK, 10, 1)
    assert all(event.exact for event in (began, took_over, went_back))


def test_what_happened_is_told_long_after_its_catalogs_are_gone() -> None:
    store = MemoryStore()
    life(store)
    before = told(store)
    chain = Chain(store)
    for step in range(100, 200):
        save(chain, step, 2, 400.0, None)
    collect_catalogs(store, chain, term=2)
    assert f"{CATALOG_PREFIX}{1:012d}" not in {info.name for info in store.list(CATALOG_PREFIX)}
    assert told(store) == before


def test_trainers_are_known_by_their_checkpoints_when_the_catalog_tells_of_later_events_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain_module, "_EVENTS", 1)
    store = MemoryStore()
    life(store)
    began, took_over, went_back = told(store)
    assert (began.what, began.at_s, began.exact, began.writer) == (Happening.BEGAN, 100.0, False, None)
    assert (took_over.what, took_over.at_s, took_over.from_step) == (Happening.TOOK_OVER, 300.0, 10)
    assert took_over.idle_s == 100.0
    assert (went_back.what, went_back.exact) == (Happening.WENT_BACK, True)
