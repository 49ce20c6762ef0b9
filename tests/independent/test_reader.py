from __future__ import annotations

import ast
import collections
import json
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.checkpoint.commit.chain import Chain, Draft
from holdfast.checkpoint.commit.changes import go_back, take_over
from holdfast.checkpoint.wire.buffer import PAGE
from holdfast.format.bundle import BLOCK_BYTES
from holdfast.format.catalog import Entry, Garbage, Intent, Ref, checkpoint_id
from holdfast.format.state import JobState, RankState, SavedState, SharedState
from holdfast.format.tree import encode_tree
from holdfast.storage import LocalStore
from holdfast.storage.files import PosixFiles
from holdfast.types import CheckpointInfo, Kind
from tests.independent import objects, reader, records, states, tree
from tests.independent.reader import Damaged, IndependentRun
from tests.independent.tree import plain_value
from tests.independent.writing import save
from tests.spec.sample import sample_run

Columns = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a checkpoint must give back."""

    tables: dict[str, Columns]
    states: list[dict[str, object]]


class Unsynced(PosixFiles):
    """Files that no power cut will meet."""

    def sync(self, handle: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class Writer:
    """Trains nothing: changes rows at random and saves them, as one run in one directory."""

    def __init__(self, root: Path, tables: dict[str, Columns], *, world: int, frame_bytes: int) -> None:
        self.store = LocalStore(root, Unsynced())
        self.chain = Chain(self.store, writer="test")
        self.term = self.chain.commit(take_over()).catalog.term
        self.saved: dict[str, Saved] = {}
        self._tables = tables
        self._world = world
        self._frame_bytes = frame_bytes
        self._step = 0
        self._last: str | None = None
        self._baseline: str | None = None
        self._since_last: dict[str, set[int]] = {name: set() for name in tables}
        self._since_baseline: dict[str, set[int]] = {name: set() for name in tables}

    def change(self, chance: random.Random, at_least: int = 0) -> None:
        """Give some rows of each table new values."""
        for name, columns in self._tables.items():
            rows = len(columns["weight"])
            ids = chance.sample(range(rows), chance.randint(at_least, rows))
            for tensor in columns.values():
                _randomize(tensor, ids, chance)
            self._since_last[name] |= set(ids)
            self._since_baseline[name] |= set(ids)

    def save(self, kind: Kind, whole: frozenset[str] = frozenset()) -> str:
        """Commit a checkpoint; of a delta's tables, those in ``whole`` are saved whole."""
        self._step += 1
        kind = kind if self._baseline else Kind.FULL
        base = {Kind.FULL: None, Kind.DIFFERENTIAL: self._baseline, Kind.INCREMENTAL: self._last}[kind]
        touched = self._since_baseline if kind is Kind.DIFFERENTIAL else self._since_last
        ids = {n: torch.tensor(sorted(rows), dtype=torch.int64) for n, rows in touched.items() if n not in whole}
        intent = self._intent(kind, base)
        states = [self._state(rank) for rank in range(self._world)]
        save(
            self.store,
            self.chain,
            intent,
            self._tables,
            states=states,
            touched=None if kind is Kind.FULL else ids,
            frame_bytes=self._frame_bytes,
        )
        self._remember(intent, states)
        return intent.checkpoint

    def _state(self, rank: int) -> dict[str, object]:
        """Every rank has a tensor; the first one's is a weight."""
        dense = torch.full((rank + 2, 1000), float(self._step))
        training = {"model": {"dense": dense}, "modules": {}, "optimizers": [], "extra": {}}
        shared = SharedState(job=JobState(restores=3), training=training) if rank == 0 else None
        own = RankState(step=self._step, reader={"rank": rank, "dense": dense})
        return SavedState(rank=own, shared=shared).to_tree()

    def _intent(self, kind: Kind, base: str | None) -> Intent:
        return Intent(
            checkpoint=checkpoint_id(self._step, self.term, f"{self._step:08x}"),
            step=self._step,
            term=self.term,
            kind=kind,
            parent=self._last,
            base=base,
            world=self._world,
            created_s=float(self._step),
            overlap="wait",
        )

    def _remember(self, intent: Intent, states: list[dict[str, object]]) -> None:
        self._last = intent.checkpoint
        for rows in self._since_last.values():
            rows.clear()
        if intent.kind is Kind.FULL:
            self._baseline = intent.checkpoint
            for rows in self._since_baseline.values():
                rows.clear()
        tables = {name: {c: tensor.clone() for c, tensor in columns.items()} for name, columns in self._tables.items()}
        self.saved[intent.checkpoint] = Saved(tables=tables, states=states)


def _randomize(tensor: Tensor, ids: list[int], chance: random.Random) -> None:
    if ids and tensor[0].numel():
        raw = chance.randbytes(len(ids) * tensor[0].numel() * tensor.element_size())
        values = torch.frombuffer(bytearray(raw), dtype=tensor.dtype).view(len(ids), *tensor.shape[1:])
        tensor[torch.tensor(ids)] = values


def _bits(value: Tensor | np.ndarray) -> tuple[list[int], bytes]:
    array = value.reshape(-1).view(torch.uint8).numpy() if isinstance(value, Tensor) else value
    return list(value.shape), array.tobytes()


def assert_reads(run: IndependentRun, saved: Mapping[str, Saved]) -> None:
    assert [entry["id"] for entry in run.checkpoints()] == list(saved)
    for checkpoint, expected in saved.items():
        tables = run.tables(checkpoint)
        assert tables.keys() == expected.tables.keys()
        for name, columns in expected.tables.items():
            assert list(tables[name]) == list(columns)
            for column, tensor in columns.items():
                assert _bits(tables[name][column]) == _bits(tensor), (checkpoint, name, column)
        for rank, state in enumerate(expected.states):
            assert repr(run.value(checkpoint, rank)) == repr(_as_arrays(state))


def _as_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_arrays(item) for key, item in value.items()}
    return value.numpy() if isinstance(value, Tensor) else value


def table(rows: int, *row_shape: int, dtype: torch.dtype = torch.float32) -> Columns:
    return {
        "weight": torch.zeros((rows, *row_shape), dtype=dtype),
        "exp_avg": torch.zeros((rows, *row_shape)),
        "sum": torch.zeros(rows, dtype=torch.float64),
    }


def run_of(root: Path, *, world: int = 1, frame_bytes: int = 2 * PAGE) -> Writer:
    return Writer(root, {"emb": table(7, 3), "big.one": table(50, 2)}, world=world, frame_bytes=frame_bytes)


shapes = st.tuples(
    st.integers(0, 60), st.sampled_from([(1,), (3,), (2, 2), (0,)]), st.sampled_from([torch.float32, torch.bfloat16])
)
saves = st.lists(
    st.tuples(
        st.sampled_from([Kind.FULL, Kind.DIFFERENTIAL, Kind.INCREMENTAL]),
        st.sets(st.integers(0, 2)),
        st.integers(0, 999),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(shapes, min_size=1, max_size=3), saves, st.integers(1, 3), st.sampled_from([1, 2, 8]))
def test_every_checkpoint_of_any_run_is_read_back_bit_for_bit(
    tables: list[tuple[int, tuple[int, ...], torch.dtype]],
    plan: list[tuple[Kind, set[int], int]],
    world: int,
    pages: int,
) -> None:
    named = {f"t{i}": table(rows, *shape, dtype=dtype) for i, (rows, shape, dtype) in enumerate(tables)}
    with tempfile.TemporaryDirectory() as root:
        writer = Writer(Path(root), named, world=world, frame_bytes=pages * PAGE)
        for kind, whole, seed in plan:
            writer.change(random.Random(seed))
            writer.save(kind, frozenset(f"t{i}" for i in whole))
        run = IndependentRun(root)
        assert_reads(run, writer.saved)
        run.verify()


def test_chunks_of_several_blocks_and_tensors_over_several_bundles_are_read_back(tmp_path: Path) -> None:
    frame_bytes = 3 * BLOCK_BYTES
    writer = Writer(tmp_path, {"emb": table(9000, 8)}, world=2, frame_bytes=frame_bytes)
    writer.change(random.Random(1))
    writer.save(Kind.FULL)
    writer.change(random.Random(2), at_least=8000)
    last = writer.save(Kind.INCREMENTAL)
    run = IndependentRun(tmp_path)
    assert max(size for name, size in run.objects().items() if last in name) > 2 * BLOCK_BYTES
    assert_reads(run, writer.saved)
    run.verify()


def test_the_newest_catalog_tells_the_timelines_and_the_term(tmp_path: Path) -> None:
    writer = run_of(tmp_path)
    first, second = writer.save(Kind.FULL), writer.save(Kind.INCREMENTAL)
    writer.chain.commit(take_over())
    writer.chain.commit(go_back(first, term=2, store_s=writer.chain.store_s))
    run = IndependentRun(tmp_path)
    assert run.catalog["term"] == 2 and run.catalog["head"] == first
    assert [(entry["id"], entry["abandoned"]) for entry in run.checkpoints()] == [(first, False), (second, True)]
    run.verify()


def test_checkpoints_on_history_pages_are_listed_in_order(tmp_path: Path) -> None:
    chain = Chain(LocalStore(tmp_path, Unsynced()))
    info = CheckpointInfo(
        id="", step=0, term=1, kind=Kind.FULL, parent=None, base=None, created_s=0.0, size_bytes=0, rows_written=0,
        full_bytes=0,
    )  # fmt: skip
    record = Ref(name="data/x/checkpoint", size_bytes=0, digest="")
    chance, entries, garbage = random.Random(5), list[Entry](), list[Garbage]()
    for number in range(300):
        entries.append(Entry(info=replace(info, id=f"c{number}", step=number), part_list=record))
        if chance.random() < 0.5:
            gone = entries.pop(chance.randrange(len(entries)))
            garbage.append(Garbage(folder=gone.info.id, dropped_s=float(number)))
        if entries and chance.random() < 0.3:
            place = chance.randrange(len(entries))
            entries[place] = replace(
                entries[place], info=replace(entries[place].info, metrics={"auc": chance.random()})
            )
        if chance.random() < 0.2:
            del garbage[: chance.randrange(1 + len(garbage))]
        draft = Draft(reason="test", term=1, head=None, entries=tuple(entries), garbage=tuple(garbage))
        head = chain.commit(lambda _, draft=draft: draft)
        run = IndependentRun(tmp_path)
        assert run.checkpoints() == [entry.to_json() for entry in entries]
        assert run.garbage() == [item.to_json() for item in garbage]
        assert (head.entries, head.garbage) == (draft.entries, draft.garbage)
    assert 1 < len(run.catalog["pages"]) < 8


def test_any_flipped_byte_of_any_object_is_found(tmp_path: Path) -> None:
    writer = run_of(tmp_path, world=2)
    for kind in (Kind.FULL, Kind.INCREMENTAL):
        writer.change(random.Random(3))
        writer.save(kind)
    chance = random.Random(4)
    for name, size in IndependentRun(tmp_path).objects().items():
        path, data = tmp_path / name, (tmp_path / name).read_bytes()
        for position in {0, size - 1, *chance.sample(range(size), 4)}:
            path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
            with pytest.raises(Damaged):
                IndependentRun(tmp_path).verify()
        path.write_bytes(data[:-1])
        with pytest.raises(Damaged):
            IndependentRun(tmp_path).verify()
        path.write_bytes(data)
    IndependentRun(tmp_path).verify()


def test_files_that_are_no_objects_are_ignored(tmp_path: Path) -> None:
    writer = run_of(tmp_path)
    writer.save(Kind.FULL)
    before = IndependentRun(tmp_path).objects()
    for name in ("catalog/000000000009~0badcafe", "data/x~1", "clock~2"):
        (tmp_path / name).write_bytes(b"torn")
    assert IndependentRun(tmp_path).objects() == before == {info.name: info.size_bytes for info in writer.store.list()}


def test_the_run_of_the_specification_is_read_as_its_pages_say(tmp_path: Path) -> None:
    sample = sample_run()
    for name, data in sample.objects.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    run = IndependentRun(tmp_path)
    run.verify()
    assert [entry["id"] for entry in run.checkpoints()] == [sample.last]
    for number in (6, 5, 4):  # as the run stood at catalog 3, its head the delta
        (tmp_path / f"catalog/{number:012d}").unlink()
    run = IndependentRun(tmp_path)
    run.verify()
    rows = run.tables(sample.delta)["emb"]
    assert rows["weight"].tolist() == [[1.0, 2.0], [1.5, 2.0], [5.0, 6.0]]  # row 1 is still the full checkpoint's
    assert rows["sum"].tolist() == [0.5, 0.0, 1.5]
    value = run.value(sample.delta)
    assert (value["step"], value["job"]["restores"]) == (2, 1)
    assert value["training"]["model"] == {"bias": np.float32(0.125)}


def test_every_kind_of_plain_value_in_a_state_tree_is_read_back() -> None:
    value = {
        "leaves": [None, True, 1, -(2**70), 0.1, float("inf"), "é", "\ud800", b"\x00\xff", 1 + 2j],
        "tuples": (1, (2.0, ())),
        "sets": [{3, 1}, {(2, "a")}, frozenset({b"x"})],
        2: collections.OrderedDict(a=1),
        ("a", None): collections.Counter("aab"),
        "default": collections.defaultdict(list, {"a": [1]}),
        "scalar": np.uint64(2**64 - 1),
    }
    skeleton = encode_tree(value).skeleton
    found = plain_value(_parsed(skeleton), [])
    assert repr(found) == repr(value)


def test_tensors_and_arrays_in_a_state_tree_are_read_back() -> None:
    value = {"tensor": torch.arange(6.0).view(2, 3), "array": np.arange(4, dtype=">i2").reshape(2, 2)}
    encoded = encode_tree({**value, "dtype": torch.bfloat16, "size": torch.Size([2])})
    found = plain_value(_parsed(encoded.skeleton), [tensor.numpy() for tensor in encoded.tensors])
    assert found["tensor"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert found["array"].dtype.str == ">i2" and found["array"].tolist() == [[0, 1], [2, 3]]
    assert (found["dtype"], found["size"]) == (("dtype", "bfloat16"), ("size", [2]))


def _parsed(skeleton: bytes) -> dict[str, object]:
    parsed = json.loads(skeleton)
    assert isinstance(parsed, dict)
    return parsed


@pytest.mark.parametrize(
    "module", [objects, reader, records, states, tree], ids=lambda module: module.__name__.rpartition(".")[2]
)
def test_the_reader_stands_on_the_standard_library_and_numpy_alone(module: object) -> None:
    source = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    imported = {alias.name for node in ast.walk(source) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(source) if isinstance(node, ast.ImportFrom)}
    foreign = {name for name in imported if name.partition(".")[0] in ("holdfast", "torch", "safetensors")}
    own = {name for name in imported if name.startswith("tests.")}
    pages = {
        "tests.independent.objects",
        "tests.independent.records",
        "tests.independent.states",
        "tests.independent.tree",
    }
    assert not foreign and own <= pages
