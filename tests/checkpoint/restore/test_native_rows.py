"""Restores without the GIL: the same rows as in the plain way, and what is wrong is found."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.checkpoint.read.chunk_reads import Read
from holdfast.checkpoint.read.crew import Crew
from holdfast.checkpoint.read.fetcher import Fetcher, lineage
from holdfast.checkpoint.read.outlines import plan_checkpoint
from holdfast.checkpoint.read.plan_builder import plan_tables
from holdfast.checkpoint.read.table_plan import TablePlan
from holdfast.checkpoint.restore.batch import Batch
from holdfast.checkpoint.restore.bundle_files import Files
from holdfast.checkpoint.restore.native_rows import NativeWork
from holdfast.checkpoint.restore.tensors import ColumnWriter, restore_rows
from holdfast.errors import DamagedData
from holdfast.storage.files import PosixFiles
from holdfast.storage.local import LocalStore

ROWS, DIM = 3000, 24  # rows of 96 bytes: a line of 64 and four words
SAVES = 6


@pytest.fixture
def run(made: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """A grid to damage, and its newest rows."""
    shutil.copytree(made[0], tmp_path / "run")
    return tmp_path / "run", made[1]


@pytest.fixture(scope="module", params=["sgd", "adagrad"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A grid with contested and arranged chunks."""
    tmp_path = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    model = nn.Embedding(ROWS, DIM, sparse=True)
    kind = torch.optim.SGD if request.param == "sgd" else torch.optim.Adagrad
    optimizer = kind(model.parameters(), lr=0.1)
    grid = hf.Grid(rule=hf.DeadShare(0.3), reset=False)
    options = {"save": hf.Never(), "strategy": grid, "retention": hf.KeepAll()}
    with hf.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, **options) as guard:
        for save in range(SAVES):
            ids = torch.randint(0, ROWS if save == 0 else 600 + 200 * save, (700,))
            model(ids).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
            guard.save(wait=True)
        guard.drain(arranged=True)
    slots = {name: value for name, value in optimizer.state[model.weight].items() if name == "sum"}
    return tmp_path / "run", {"weight": model.weight.detach().clone(), **slots}


def plan_of(store: LocalStore) -> TablePlan:
    head, fetcher = hf.open_run(store).head(), Fetcher(store)
    history = [fetcher.parts(entry) for entry in lineage(head, head.entries[-1].info.id)]
    (plan,) = plan_tables(history).values()
    return plan


def empty(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.full_like(values, torch.nan) for name, values in columns.items()}


def reads(plan: TablePlan) -> list[tuple[int, Read]]:
    return [(number, read) for number, generation in enumerate(plan.generations) if number for read in generation]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_both_ways_restore_the_same(run: tuple[Path, dict[str, Tensor]], workers: int) -> None:
    folder, expected = run
    for store in (LocalStore(folder), LocalStore(folder, PosixFiles())):  # files of its own are not read directly
        targets, seen = empty(expected), []
        restore_rows(
            Fetcher(store),
            [(plan_of(store), targets)],
            seen=lambda _, ids, seen=seen: seen.append(ids),
            workers=workers,
        )
        assert all(torch.equal(targets[name], values) for name, values in expected.items())
        told = torch.from_numpy(np.unique(np.concatenate([ids for ids in seen if ids is not None])))
        assert torch.equal(told, torch.cat([_ids(store, read) for _, read in reads(plan_of(store))]).unique())


def test_pieces_of_local_files_are_done_without_the_gil(run: tuple[Path, dict[str, Tensor]]) -> None:
    folder, expected = run
    targets = empty({"weight": expected["weight"]})
    done = _apply(LocalStore(folder), targets)
    assert all(done) and len(done) >= SAVES - 1
    assert not any(_apply(LocalStore(folder, PosixFiles()), targets))


def test_a_damaged_block_is_left_undone_and_then_told(run: tuple[Path, dict[str, Tensor]]) -> None:
    folder, expected = run
    store = LocalStore(folder)
    _, read = reads(plan_of(store))[0]
    path = folder / read.bundle.name
    data = bytearray(path.read_bytes())
    data[read.chunk.place.offset + read.chunk.place.length - 1] ^= 1
    path.write_bytes(data)
    targets = empty(expected)
    assert not all(_apply(LocalStore(folder), targets))
    with pytest.raises(DamagedData, match="does not match its checksum"):
        restore_rows(Fetcher(store), [(plan_of(store), targets)])


class MendingStore(LocalStore):
    """Its file becomes what it was as soon as somebody asks the store for rows of it."""

    def spoil(self, path: Path, at: int) -> None:
        self._file, self._intact = path, path.read_bytes()
        path.write_bytes(self._intact[:at] + bytes([self._intact[at] ^ 1]) + self._intact[at + 1 :])

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Any:
        if start > 0 and self._file.name in name:
            self._file.write_bytes(self._intact)
        return super().get_range(name, start, stop, into=into)


def test_a_bad_read_without_the_gil_is_told_even_if_the_next_one_is_good(
    run: tuple[Path, dict[str, Tensor]], caplog: pytest.LogCaptureFixture
) -> None:
    folder, expected = run
    store = MendingStore(folder)
    plan = plan_of(store)
    _, read = reads(plan)[0]
    store.spoil(folder / read.bundle.name, read.chunk.place.offset)
    targets = empty(expected)
    restore_rows(Fetcher(store), [(plan, targets)])
    assert all(torch.equal(targets[name], values) for name, values in expected.items())
    assert "a second read found it intact" in caplog.text


def test_a_file_cut_short_or_gone_is_told(run: tuple[Path, dict[str, Tensor]]) -> None:
    folder, expected = run
    store = LocalStore(folder)
    plan = plan_of(store)
    path = folder / reads(plan)[0][1].bundle.name
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DamagedData, match="truncated"):
        restore_rows(Fetcher(store), [(plan, empty(expected))])
    path.unlink()
    with pytest.raises(DamagedData, match="is missing"):
        restore_rows(Fetcher(store), [(plan, empty(expected))])


class CountedStore(LocalStore):
    """Knows how often it was asked for rows: files that are read directly do not ask, but for the heads of bundles."""

    ranges = 0

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Any:
        self.ranges += start > 0
        return super().get_range(name, start, stop, into=into)


def test_of_many_small_tables_no_chunk_is_read_in_the_plain_way(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = (3, 40, 2000, 17, 500)  # the first is the smallest: what holds for it must not be asked of others
    model = nn.ModuleList([nn.Embedding(rows, 16, sparse=True) for rows in sizes])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    options = {"save": hf.Never(), "strategy": hf.Grid(rule=hf.DeadShare(0.7), reset=False), "retention": hf.KeepAll()}
    with hf.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, **options) as guard:
        for _ in range(SAVES):
            lookups = [
                table(torch.randint(0, rows, (rows // 3 + 1,))) for table, rows in zip(model, sizes, strict=True)
            ]
            sum(looked_up.square().sum() for looked_up in lookups).backward()
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
            guard.save(wait=True)
        guard.drain(arranged=True)
    store = CountedStore(tmp_path / "run")
    head, fetcher = hf.open_run(store).head(), Fetcher(store)
    plans = plan_checkpoint(fetcher, head, head.entries[-1].info.id)
    assert sum(read.contested for plan in plans.values() for _, read in reads(plan)) > len(sizes)
    targets = {
        f"{number}": {"weight": torch.zeros(rows, 16), "sum": torch.zeros(rows, 16)}
        for number, rows in enumerate(sizes)
    }
    above = [(plan.without_baseline(), targets[name]) for name, plan in plans.items()]
    asked = store.ranges
    restore_rows(fetcher, above)
    assert store.ranges == asked
    for found, table in zip(targets.values(), model, strict=True):
        moved = found["sum"].any(dim=1)  # the others are as the baseline has them
        assert torch.equal(found["weight"][moved], table.weight.detach()[moved])
        assert torch.equal(found["sum"][moved], optimizer.state[table.weight]["sum"][moved])


def _ids(store: LocalStore, read: Read) -> Tensor:
    width = 4 if read.chunk.ids == "U32" else 8
    data = Fetcher(store).chunk(read.bundle, read.chunk.place, 0, width * read.rows)
    return torch.from_numpy(np.frombuffer(data, dtype=f"<u{width}").astype(np.int64) + read.chunk.first)


def _apply(store: LocalStore, targets: dict[str, Tensor]) -> list[bool]:
    plan = plan_of(store)
    columns = {column.name: column for column in plan.spec.columns}
    writers = {
        name: ColumnWriter(target, columns[name].dtype, columns[name].row_shape) for name, target in targets.items()
    }
    above = plan.without_baseline().reads
    batch = Batch(
        spec=plan.spec, reads=above, groups=np.zeros_like(above.at), writers=writers, wanted=range(plan.spec.rows)
    )
    pieces = NativeWork(Files(Fetcher(store)), [batch])
    with Crew(2) as crew:
        pieces.apply(crew, 0)
    done: list[bool] = pieces.done(0).tolist()
    return done
