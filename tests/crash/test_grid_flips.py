"""One byte of an arranged grid is changed, anywhere: ``verify`` names the object, and so does a restore that reads it.

A rearrangement that meets such a byte copies nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import pytest

import holdfast as hf
from holdfast.checkpoint.commit import pages
from holdfast.errors import CheckpointNotFound, DamagedData
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.catalog import PartList, intent_name
from holdfast.format.manifest import Manifest, Place
from holdfast.policy import Rule
from holdfast.run import Run
from holdfast.storage import MemoryStore, Store
from tests.grid import ROWS, Model, Trainer, Truth, as_files, bundles_named, manifests, restored, same


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A byte of an object, and the checkpoints that cannot be restored without it; None: of a catalog or its pages.

    Where an outline holds a copy of the byte, they may be restored all the same.
    """

    name: str
    at: int
    breaks: frozenset[str] | None
    copied: bool = False


class Arranged:
    """A grid that was rearranged several times, and which byte of it each checkpoint needs."""

    def __init__(self, folder: Path) -> None:
        self.store, self.truth = MemoryStore(), Truth()
        with Trainer(self.store, hf.Grid(rule=hf.DeadShare(0.05), reset=False), self.truth) as trainer:
            trainer.save({"wide": [0], "short": [0], "flat": [0]})
            trainer.save({"wide": list(range(12)), "short": list(range(9))}, arranged=True)
            trainer.save({"wide": list(range(6, 18)), "flat": list(range(5))}, arranged=True)
            trainer.save({"wide": [2, 3, 7, 15], "short": [1, 2]}, arranged=True)
            trainer.save({"wide": [40], "flat": [3, 20]}, arranged=True)
        self.run = Run(self.store)
        self.ids = [info.id for info in self.run.checkpoints()]
        self.manifests = {checkpoint: parts[0] for checkpoint, parts in manifests(self.store).items()}
        self.model = Model()
        self.stores: list[Store] = [self.store, as_files(self.store, folder)]  # both ways to read rows

    def objects(self) -> dict[str, frozenset[str] | None]:
        """Every object that the newest catalog leads to but bundles, and who needs it."""
        head = self.run.head()
        found: dict[str, frozenset[str] | None] = {head.ref.name: None}
        found |= {page.ref.name: None for page in head.catalog.pages}
        found |= {outline.ref.name: frozenset() for outline in head.catalog.outlines}
        for number, entry in enumerate(head.entries):
            standing = frozenset(self.ids[number:])  # what stands on it, itself included
            found[intent_name(entry.info.id)] = frozenset()
            found[entry.part_list.name] = standing
            parts = PartList.decode(self.store.get(entry.part_list.name), name=entry.part_list.name)
            found |= {part.name: standing for part in parts.parts}
        return found

    def flips(self) -> Iterator[Flip]:
        chance = Random(0)
        for name, breaks in self.objects().items():
            size = len(self.store.get(name))
            for at in (0, chance.randrange(size), size - 1):
                yield Flip(
                    name=name, at=at, breaks=breaks, copied=name.rpartition("/")[2].startswith(("checkpoint", "part"))
                )
        blocks = list(self._blocks())
        for name, head_bytes in sorted({(b.name, b.head_bytes) for m in self.manifests.values() for b in m.bundles}):
            here = [(place, number, readers) for where, place, number, readers in blocks if where == name]
            anybody = frozenset(reader for _, _, readers in here for reader in readers)
            for at in (0, chance.randrange(8, head_bytes), head_bytes - 1):
                yield Flip(name=name, at=at, breaks=anybody, copied=True)
            for place, number, readers in here:
                start = place.offset + number * BLOCK_BYTES
                stop = min(start + BLOCK_BYTES, place.offset + place.length)
                for at in (start, chance.randrange(start, stop), stop - 1):
                    yield Flip(name=name, at=at, breaks=readers)

    def _blocks(self) -> Iterator[tuple[str, Place, int, frozenset[str]]]:
        """Every block of every chunk: its bundle, the chunk's place, its number, and who reads it."""
        reads = {(each, r.object_name, r.start, r.stop) for each in self.ids for r in self.run.restore_plan(each).reads}
        for checkpoint, manifest in self.manifests.items():
            for place, own in _places(manifest):
                name = manifest.bundles[place.bundle].name
                for number in range(-(-place.length // BLOCK_BYTES)):
                    low = place.offset + number * BLOCK_BYTES
                    high = min(low + BLOCK_BYTES, place.offset + place.length)
                    readers = {each for each, where, a, b in reads if where == name and a < high and low < b}
                    yield name, place, number, frozenset(readers | ({checkpoint} if own else set()))

    def examine(self, flip: Flip) -> None:
        before = self.store.get(flip.name)
        data = bytearray(before)
        data[flip.at] ^= 1 << flip.at % 8
        for store in self.stores:
            store.put(flip.name, bytes(data))
        try:
            named = {problem.object_name for problem in self.run.verify()}
            assert flip.name in named
            assert flip.breaks is None or named == {flip.name}
            for checkpoint in self.ids:
                for store in self.stores:
                    self._restore(Run(store), checkpoint, flip)
                self._read_rows(checkpoint, flip)
        finally:
            for store in self.stores:
                store.put(flip.name, before)

    def _restore(self, run: Run, checkpoint: str, flip: Flip) -> None:
        try:
            run.restore(checkpoint, **self.model.parts)
        except DamagedData as error:
            # An older catalog that is fallen back on may refer to what was rearranged and collected since.
            assert flip.breaks is None or (error.object_name == flip.name and checkpoint in flip.breaks)
        except CheckpointNotFound:
            assert flip.breaks is None
        else:
            assert flip.breaks is None or flip.copied or checkpoint not in flip.breaks
            assert same(self.model.state(), self.truth.states[checkpoint])

    def _read_rows(self, checkpoint: str, flip: Flip) -> None:
        truth = self.truth.states[checkpoint]
        for table in ROWS:
            try:
                rows = Run(self.store).read_rows(table, range(ROWS[table]), step=checkpoint)
            except (DamagedData, CheckpointNotFound):
                assert flip.breaks is None or checkpoint in flip.breaks
            else:
                assert same({table: rows}, {table: truth[table]})


def _places(manifest: Manifest) -> Iterator[tuple[Place, bool]]:
    """The places of its chunks, and whether they are of the state, which only this checkpoint reads."""
    yield from ((chunk.place, False) for part in manifest.tables for chunk in part.chunks)
    yield from ((chunk.place, True) for chunk in manifest.state)


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_a_flipped_byte_anywhere_in_a_grid_is_found_by_all_who_read_it(
    every: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "_INLINE_ITEMS", 2)  # so that a short run has history pages
    grid = Arranged(tmp_path)
    kinds = {name.rpartition("/")[2].split("-")[0] for name in (*grid.objects(), *bundles_named(grid.store))}
    assert {"rows", "replaced", "00000", "part", "checkpoint", "intent", "outline"} <= kinds
    for flip in islice(grid.flips(), 0, None, every):  # 5: no two of the three bytes of a place
        try:
            grid.examine(flip)
        except BaseException as error:
            error.add_note(f"{flip.name}, byte {flip.at}")
            raise
    grid.truth.check(grid.run)


# ---- what a rearrangement meets -----------------------------------------------------------------------------------


def rows_bundle(store: MemoryStore, checkpoint: str) -> tuple[str, Place, int]:
    """The bundle with a checkpoint's rows of table wide: its name, the chunk's place, and the length of its head."""
    (manifest,) = manifests(store)[checkpoint]
    (chunk,) = next(part.chunks for part in manifest.tables if part.spec.name == "wide")
    bundle = manifest.bundles[chunk.place.bundle]
    return bundle.name, chunk.place, bundle.head_bytes


WHERE = {
    "a length in the head": lambda place, head: 3,
    "a checksum in the head": lambda place, head: head - 64,
    "an id": lambda place, head: place.offset,
    "a weight": lambda place, head: place.offset + 64,
    "the last byte": lambda place, head: place.offset + place.length - 1,
}


@pytest.mark.parametrize("rule", [hf.DeadShare(0.05), hf.Pairs(0.0)], ids=repr)
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("where", WHERE)
def test_a_damaged_source_is_not_copied_and_saves_go_on(
    where: str, restarted: bool, rule: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    store, truth = MemoryStore(), Truth()
    grid = hf.Grid(rule=rule, reset=False)
    trainer = Trainer(store, grid, truth)
    base = trainer.save({"wide": [0], "short": [0], "flat": [0]})
    source = trainer.save({"wide": list(range(10))}, arranged=True)
    name, place, head_bytes = rows_bundle(store, source)
    if restarted:
        trainer.guard.close()
        trainer = Trainer(store, grid, truth)
    good = store.get(name)
    data = bytearray(good)
    data[WHERE[where](place, head_bytes)] ^= 16
    store.put(name, bytes(data))
    for number in range(3):  # each replaces rows of the damaged one
        trainer.save({"wide": [number, 20 + number], "flat": [number]}, arranged=True)
    trainer.guard.close()

    assert "rearranging increments is paused" in caplog.text and name in caplog.text
    run = Run(store)
    assert {problem.object_name for problem in run.verify()} == {name}
    assert len(run.checkpoints()) == 5
    truth.check(run, base)
    for info in run.checkpoints()[1:]:
        with pytest.raises(DamagedData) as caught:
            restored(run, info.id)
        assert caught.value.object_name == name
    store.put(name, good)  # nothing else was lost with it
    truth.check(run)
    assert run.verify() == []
