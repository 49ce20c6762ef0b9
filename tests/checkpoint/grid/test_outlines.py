"""Outlines: a plan made from them is the one that the manifests give; whatever is wrong with one costs time only."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hf
from holdfast.checkpoint.commit.chain import Chain
from holdfast.checkpoint.commit.changes import Clocks, outline
from holdfast.checkpoint.read.fetcher import Fetcher
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.errors import DamagedData
from holdfast.format.catalog import CATALOG_PREFIX, Catalog, OutlineRef, PartList, Ref
from holdfast.format.document import digest, seal, unseal
from holdfast.format.manifest import BundleRef, Manifest, Place, RowsChunk, Segment, TablePart
from holdfast.format.outline import Outline
from holdfast.format.outline_document import KIND, decode_outline, encode_outline
from holdfast.run import Run
from holdfast.storage import MemoryStore, Store
from holdfast.testing.faults import FaultyStore, Operation
from holdfast.types import ColumnSpec, TableSpec
from tests.grid import ROWS, Model, Trainer, Truth, check_plans, manifests, plan_facts

GRID = hf.Grid(rule=hf.DeadShare(0.25), reset=False)
SAVES = 14


def arranged(store: Store, truth: Truth, saves: int = SAVES, seed: int = 0) -> None:
    """A grid with an outline."""
    chance = Random(seed)
    with Trainer(store, GRID, truth) as trainer:
        trainer.save({name: [0] for name in ROWS})
        for _ in range(saves - 1):
            ids = {name: chance.sample(range(rows), chance.randint(1, rows // 4)) for name, rows in ROWS.items()}
            trainer.save(ids, arranged=True)


@pytest.fixture(scope="module")
def made() -> tuple[MemoryStore, Truth]:
    store, truth = MemoryStore(), Truth()
    arranged(store, truth)
    return store, truth


@pytest.fixture
def grid(made: tuple[MemoryStore, Truth]) -> tuple[MemoryStore, Truth]:
    """A copy to break."""
    store = MemoryStore()
    for info in made[0].list():
        store.put(info.name, made[0].get(info.name))
    return store, made[1]


def stored(store: Store) -> OutlineRef:
    """The outline that the newest catalog names."""
    (found,) = Run(store).head().catalog.outlines
    return found


def put_instead(store: Store, data: bytes) -> None:
    """Let the catalog name another object as the grid's outline."""
    old, name = stored(store), "data/s000000000001-t00001-ffffffff/outline-00000"
    store.put(name, data)
    ref = OutlineRef(
        baseline=old.baseline, rank=old.rank, ref=Ref(name=name, size_bytes=len(data), digest=digest(data))
    )
    term = Run(store).head().catalog.term
    Chain(store).commit(outline(ref, term=term, clocks=Clocks(wall_s=store.now_s, store_s=store.now_s)))


def outlined(store: Store) -> Outline:
    return Fetcher(store).outline(stored(store).ref)


def follower_of(store: Store) -> hf.Follower:
    model = Model()
    return hf.Follower(store, model.module, tables={"flat": model.flat})


READS: dict[str, Callable[[Store], object]] = {
    "a checkpoint": lambda store: Run(store).restore_plan(),
    "the newest rows": lambda store: Run(store).read_newest_rows("wide", [0]),
    "a follower's first load": lambda store: follower_of(store).update(),
}


def records_read(store: Store, read: Callable[[Store], object]) -> int:
    """How many records and manifests are read."""
    watched = FaultyStore(store)
    read(watched)
    return count_records(watched.history)


def count_records(operations: Iterable[Operation]) -> int:
    leaves = [operation.name.rpartition("/")[2] for operation in operations if operation.kind == "get"]
    return sum(leaf.startswith(("checkpoint", "part")) for leaf in leaves)


def test_a_plan_from_an_outline_is_the_one_that_the_manifests_give(grid: tuple[MemoryStore, Truth]) -> None:
    store, truth = grid
    assert len(outlined(store).parts) > SAVES // 2
    check_plans(store)
    truth.check(Run(store))


@pytest.mark.parametrize("what", READS)
def test_what_is_outlined_is_not_read_one_by_one(what: str, grid: tuple[MemoryStore, Truth]) -> None:
    store, _ = grid
    entries = Run(store).head().entries
    current = {entry.part_list.digest for entry in entries}
    stale = len(entries) - sum(part.digest in current for part in outlined(store).parts)
    assert stale <= 3  # less than what would bring a new one
    assert records_read(store, READS[what]) <= 2 * (stale + 1)  # a follower reads the newest one for its state, too
    store.delete([stored(store).ref.name])
    assert records_read(store, READS[what]) >= len(entries)


@pytest.mark.parametrize(("rows", "is_copied"), [(1_000, True), (150_000, False)])
def test_a_baseline_is_outlined_unless_it_is_more_than_all_the_rest(rows: int, is_copied: bool) -> None:
    store, model = MemoryStore(), torch.nn.Embedding(rows, 16, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"save": hf.Never(), "strategy": GRID, "retention": hf.KeepAll()}
    with hf.Checkpointer(store, model=model, optimizer=optimizer, **options) as guard:
        for save in range(6):
            model(torch.tensor([save, save + 7])).sum().backward()
            optimizer.step()
            guard.step()
            guard.save(wait=True)
        guard.drain(arranged=True)
    baseline = Run(store).head().entries[0]
    assert (baseline.part_list.digest in {part.digest for part in outlined(store).parts}) == is_copied
    found = torch.nn.Embedding(rows, 16)
    Run(store).restore(model=found)
    assert torch.equal(found.weight, model.weight)


def test_a_follower_reads_of_later_checkpoints_only_what_is_new(grid: tuple[MemoryStore, Truth]) -> None:
    watched = FaultyStore(grid[0])
    follower = follower_of(watched)
    follower.update()
    with Trainer(grid[0], hf.Consecutive(), Truth()) as trainer:
        trainer.save({"wide": [3]})
    before = len(watched.history)
    follower.update()
    assert count_records(watched.history[before:]) == 2  # its part list and its manifest


def test_no_bundle_is_opened_for_its_checksums_that_are_outlined(grid: tuple[MemoryStore, Truth]) -> None:
    store, _ = grid
    fetcher = Fetcher(store)
    plans = plan_checkpoint(fetcher, Run(store).head(), Run(store).checkpoints()[-1].id)
    known = outlined(store).directories
    for read in (read for plan in plans.values() for generation in plan.generations for read in generation):
        if read.bundle.name in known:
            directory = fetcher.known_directory(read.bundle)
            assert directory is not None
            assert (directory == Fetcher(store).directory(read.bundle)).all()


def test_a_missing_outline_costs_time_only(grid: tuple[MemoryStore, Truth]) -> None:
    store, truth = grid
    store.delete([stored(store).ref.name])
    truth.check(Run(store))
    assert [problem.object_name for problem in Run(store).verify()] == [stored(store).ref.name]


def test_a_damaged_outline_costs_time_only(grid: tuple[MemoryStore, Truth]) -> None:
    store, truth = grid
    name = stored(store).ref.name
    good = bytes(store.get(name))
    for at in (0, 30, len(good) // 2, len(good) - 2):
        store.put(name, good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        check_plans(store)
        assert [problem.object_name for problem in Run(store).verify()] == [name]
    truth.check(Run(store))


def test_an_outline_of_another_run_costs_time_only(grid: tuple[MemoryStore, Truth]) -> None:
    store, truth = grid
    other = MemoryStore()
    arranged(other, Truth(), saves=8, seed=1)
    put_instead(store, bytes(other.get(stored(other).ref.name)))
    check_plans(store)
    truth.check(Run(store))


def test_a_part_under_the_digest_of_another_checkpoint_is_not_believed(grid: tuple[MemoryStore, Truth]) -> None:
    store, truth = grid
    found = outlined(store)
    digests = [part.digest for part in found.parts]
    parts = tuple(part._replace(digest=d) for part, d in zip(found.parts, digests[1:] + digests[:1], strict=True))
    put_instead(store, encode_outline(replace(found, parts=parts)))
    check_plans(store)
    truth.check(Run(store))


Change = Callable[[dict[str, Any]], object]


def beyond(columns: dict[str, list[str]], name: str) -> None:
    """Let a column say 255 everywhere."""
    kind, text = columns[name]
    assert kind == "u1"
    columns[name] = [kind, b64encode(b"\xff" * len(b64decode(text))).decode()]


MALFORMED: dict[str, Change] = {
    "a column is missing": lambda body: body.pop("segments"),
    "too few checksums": lambda body: body.update(checksums=["u4", ""]),
    "no base64": lambda body: body["chunks"].update(rows=["u2", "?"]),
    "no such type": lambda body: body["chunks"].update(rows=["f4", ""]),
    "a column that is too short": lambda body: body["chunks"].update(rows=["u1", ""]),
    "no table": lambda body: body.update(tables=[]),
    "no form": lambda body: body.update(forms=[]),
    "no bundle": lambda body: body.update(bundles=[], checksums=["u4", ""]),
    "no shares": lambda body: body.update(shares=[]),
    "too few segments": lambda body: body.update(segments=[["u1", ""], ["u1", ""]]),
    "a part that is not there": lambda body: beyond(body["shares"], "part"),
    "a table that is not there": lambda body: beyond(body["shares"], "table"),
    "shares of several lengths": lambda body: body["shares"].update(whole=["u1", ""]),
    "a timeline that is not there": lambda body: body["parts"][0].__setitem__(3, 10**6),
    "a timeline too short": lambda body: body["parts"][0].__setitem__(5, 10**6),
    "of another version": lambda body: body,
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_outline_is_refused_and_costs_time_only(case: str, grid: tuple[MemoryStore, Truth]) -> None:
    store, truth = grid
    name = stored(store).ref.name
    body = unseal(KIND, 1, store.get(name), name=name)
    MALFORMED[case](body)
    put_instead(store, seal(KIND, 2 if case == "of another version" else 1, body))
    with pytest.raises(DamagedData):
        outlined(store)
    check_plans(store)
    truth.check(Run(store), Run(store).checkpoints()[-1].id)


def test_many_writers_parts_are_known_by_their_own_digests(grid: tuple[MemoryStore, Truth]) -> None:
    """Each rearranges its own part, and so makes a new part list; the others' parts stay outlined."""
    store, _ = grid
    head, fetcher = Run(store).head(), Fetcher(store)
    entry = head.entries[-2]
    (manifest,) = fetcher.parts(entry)
    data = manifest.encode()
    store.put("data/x/part", data)
    ref = Ref(name="data/x/part", size_bytes=len(data), digest=digest(data))
    part_list = PartList(checkpoint=entry.info.id, parts=(ref,)).encode()
    store.put("data/x/record", part_list)
    moved = replace(entry, part_list=Ref(name="data/x/record", size_bytes=len(part_list), digest=digest(part_list)))
    put_instead(store, encode_outline(Outline.of([manifest], [ref.digest], _directories(fetcher, manifest))))
    store.delete([ref.name])
    outlined = Run(store).head()
    by_id = {**head.by_id, entry.info.id: moved}
    after = replace(outlined, inventory=replace(outlined.inventory, by_id=by_id))
    plans = plan_checkpoint(Fetcher(store), after, entry.info.id)
    assert plan_facts(plans) == plan_facts(plan_checkpoint(fetcher, head, entry.info.id))


def _directories(fetcher: Fetcher, manifest: Manifest) -> dict[str, Any]:
    return {bundle.name: fetcher.directory(bundle) for bundle in manifest.bundles}


def test_chunks_come_back_as_they_were(grid: tuple[MemoryStore, Truth]) -> None:
    store, _ = grid
    fetcher = Fetcher(store)
    parts = [part for each in manifests(store).values() for part in each]
    digests = [str(number) for number in range(len(parts))]
    directories = {name: d for part in parts for name, d in _directories(fetcher, part).items()}
    found = decode_outline(encode_outline(Outline.of(parts, digests, directories)), name="x")
    numbers = iter(range(10**6))
    for part in parts:
        for table in part.tables:
            for chunk in table.chunks:
                copy = found.chunk(next(numbers))
                assert found.bundles[copy.place.bundle] == part.bundles[chunk.place.bundle]
                assert replace(copy, place=replace(copy.place, bundle=chunk.place.bundle)) == chunk


def test_whatever_a_chunk_says_of_its_columns_is_kept() -> None:
    def place(number: int) -> Place:
        return Place(bundle=0, offset=2**40 + number * 2**20, length=2**20, block=8 * number)

    exact = RowsChunk(place=place(0), rows=2**30 + 5, first=3, last=2**41, ids="U64", through=2)
    coded = replace(exact, codec='{"weight":{"kind":"x"}}', ids="G8", escapes=(3,), loss=0.125)
    kinds = (replace(exact, segments=(Segment(-1, 5), Segment(1, 2**30))), coded, replace(coded, loss=0.5), exact)
    chunks = tuple(replace(chunk, place=place(number)) for number, chunk in enumerate(kinds))
    spec = TableSpec(name="t", rows=2**42, columns=(ColumnSpec(name="weight", dtype="F32", row_shape=(4,)),))
    manifest = Manifest(
        checkpoint="c",
        rank=3,
        world=4,
        tables=(TablePart(spec=spec, start=1, stop=2**41 + 1, whole=False, chunks=chunks),),
        tensors=(),
        state=(),
        bundles=(BundleRef(name="b", size_bytes=2**41, head_bytes=4096, digest="d"),),
        full_bytes=1,
        replacing=("x", "y"),
    )
    found = decode_outline(encode_outline(Outline.of([manifest], ["1"], {"b": np.zeros(32, dtype="<u4")})), name="o")
    assert tuple(found.chunk(number) for number in range(len(chunks))) == chunks
    assert [found.shares[number] for number in range(len(found.shares))] == [(0, spec, 1, 2**41 + 1, False)]
    assert found.parts == (("c", 3, "1", (0, 0, 2)),) and found.timelines == (("x", "y"),)


@pytest.mark.parametrize("saves", [10, 40])
def test_what_is_written_of_outlines_grows_with_what_changes(saves: int) -> None:
    inner = MemoryStore()
    watched = FaultyStore(inner)
    chance = Random(0)
    with Trainer(watched, GRID, Truth()) as trainer:
        for _ in range(saves):
            trainer.save({"wide": chance.sample(range(60), 8)}, arranged=True)
    puts = [operation.name for operation in watched.history if operation.kind == "put"]
    changes = sum(name.rpartition("/")[2].startswith("checkpoint") for name in puts)  # records, new and anew
    outlines = sum("/outline-" in name for name in puts)
    assert 0 < outlines <= changes // 4
    assert sum("/outline-" in info.name for info in inner.list("data/")) <= 2  # one may wait for its collection


def test_an_outline_goes_with_its_baseline() -> None:
    store, truth = MemoryStore(), Truth()
    with Trainer(store, GRID, truth) as trainer:
        for number in range(8):
            trainer.save({"wide": [number, 20]}, arranged=True)
    Run(store).prune(hf.KeepLast(1), grace_s=0.0)
    assert stored(store).ref.name in {info.name for info in store.list()}  # the newest one stands on its baseline
    with Trainer(store, hf.Full(), truth) as trainer:
        trainer.save({"wide": [1]})
    Run(store).prune(hf.KeepLast(1), grace_s=0.0)
    assert Run(store).head().catalog.outlines == ()
    assert not [info.name for info in store.list() if "/outline-" in info.name]
    truth.check(Run(store))


def test_catalogs_without_outlines_are_as_they_were(grid: tuple[MemoryStore, Truth]) -> None:
    store, _ = grid
    name = next(info.name for info in store.list(CATALOG_PREFIX))
    catalog = replace(Catalog.decode(store.get(name), name=name), outlines=())
    assert b"outlines" not in catalog.encode()
    assert Catalog.decode(catalog.encode(), name=name) == catalog
