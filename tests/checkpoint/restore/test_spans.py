"""Chunks that lie together are asked for together, where a store has no files."""

from __future__ import annotations

from random import Random

import pytest

import holdfast as hf
from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.restore.spans import spans_of
from holdfast.checkpoint.restore.tensors import restore_rows
from holdfast.format.layout import IDS
from holdfast.run import Run
from holdfast.storage import MemoryStore
from holdfast.testing.faults import FaultyStore
from tests.grid import ROWS, Model, Trainer, Truth, same

Saved = tuple[MemoryStore, Truth]


@pytest.fixture(scope="module", params=[0.2, 0.9], ids=["arranged", "contested"])
def saved(request: pytest.FixtureRequest) -> Saved:
    """A grid of three tables; of those with contested chunks ids are read first."""
    store, truth, chance = MemoryStore(), Truth(), Random(3)
    with Trainer(store, hf.Grid(rule=hf.DeadShare(request.param), reset=False), truth) as trainer:
        for _ in range(8):
            trainer.save({name: chance.sample(range(rows), rows // 3) for name, rows in ROWS.items()}, arranged=True)
    return store, truth


def reads_of(store: MemoryStore) -> list[Read]:
    head = Run(store).head()
    plans = plan_checkpoint(Fetcher(store), head, head.entries[-1].info.id)
    return [read for plan in plans.values() for generation in plan.generations[1:] for read in generation]


def test_a_restore_asks_once_for_the_chunks_of_a_bundle(saved: Saved) -> None:
    store, truth = saved
    reads = reads_of(store)
    bundles = {read.bundle.name for read in reads}
    assert len(reads) > 2 * len(bundles)
    watched = FaultyStore(store)
    head, fetcher, model = Run(watched).head(), Fetcher(watched), Model()
    model.step({name: range(rows) for name, rows in ROWS.items()}, seed=1)  # makes the slots
    live = {name: {"weight": parameter.data} for name, parameter in model.parameters.items()}
    plans = plan_checkpoint(fetcher, head, head.entries[-1].info.id)
    before = len(watched.history)
    restore_rows(fetcher, [(plan, live[name]) for name, plan in plans.items()])
    asked = [each for each in watched.history[before:] if each.kind == "get_range" and each.name in bundles]
    heads = sum(
        fetcher.known_directory(read.bundle) is not None for read in {read.bundle.name: read for read in reads}.values()
    )
    assert len(asked) <= heads + 2 * len(bundles)  # a head, the ids of a contest, the rows
    newest = truth.states[head.entries[-1].info.id]
    assert all(same({n: columns}, {n: {"weight": newest[n]["weight"]}}) for n, columns in live.items())


def test_every_read_is_in_one_span_that_covers_it(saved: Saved) -> None:
    reads = reads_of(saved[0])
    spans = spans_of(reads, [(IDS, "weight")] * len(reads))
    assert sorted(number for span in spans for number in span.members) == list(range(len(reads)))
    for span in spans:
        for read in (reads[number] for number in span.members):
            place = read.chunk.place
            assert read.bundle == span.bundle
            assert span.start <= place.offset < span.stop <= read.bundle.size_bytes


def test_a_byte_that_flips_on_its_way_once_is_read_again(saved: Saved) -> None:
    store, truth = saved
    flipped: list[str] = []

    class Flaky(MemoryStore):
        """Hands out a wrong byte at the end of the first answer for each bundle's rows."""

        def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None):  # type: ignore[no-untyped-def]
            data = bytearray(store.get_range(name, start, stop))
            if start and name not in flipped:
                flipped.append(name)
                data[-1] ^= 1
            return memoryview(data)

    flaky = Flaky()
    for info in store.list():
        flaky.put(info.name, store.get(info.name))
    model = Model()
    Run(flaky).restore(**model.parts)
    assert flipped
    assert same(model.state(), truth.states[Run(store).head().entries[-1].info.id])
