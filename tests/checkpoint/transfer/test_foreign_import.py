"""Checkpoints that others wrote, as the beginning of a run."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import holdfast as hf
from holdfast.errors import ConfigurationError, DamagedData, ModelMismatch, RunError
from holdfast.storage import MemoryStore
from holdfast.types import Kind
from tests.tiny import build, same, snapshot, train_step

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # DCP in a single process

State = dict[str, Tensor]


def flat_torch(state: State, folder: Path) -> Path:
    torch.save(state, folder / "model.pt")
    return folder / "model.pt"


def old_torch(state: State, folder: Path) -> Path:
    torch.save(state, folder / "model.bin", _use_new_zipfile_serialization=False)
    return folder / "model.bin"


def script_torch(state: State, folder: Path) -> Path:
    """As training scripts write them, with the optimizer and the epoch beside the model."""
    optimizer = {"state": {0: {"exp_avg": torch.ones(300, 4)}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"epoch": 3, "model_state_dict": OrderedDict(state), "optimizer": optimizer}, folder / "last.ckpt")
    return folder / "last.ckpt"


def one_safetensors(state: State, folder: Path) -> Path:
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder / "model.safetensors"


def sharded_safetensors(state: State, folder: Path) -> Path:
    names = sorted(state)
    files = {name: f"model-{number % 2 + 1:05d}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: state[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def flat_dcp(state: State, folder: Path) -> Path:
    dcp.save(state, checkpoint_id=folder)
    return folder


def nested_dcp(state: State, folder: Path) -> Path:
    """With the optimizer's state, whose tensors look like tables, and objects that DCP pickles."""
    optimizer = {"state": {"emb.0.weight": {"exp_avg": torch.ones(300, 4), "step": 7}}}
    dcp.save({"model": state, "optim": optimizer, "epoch": 3}, checkpoint_id=folder)
    return folder


def sharded_dcp(state: State, folder: Path) -> Path:
    """As several ranks write it: every matrix in four blocks of rows and columns, in two files."""
    tensors, places = {}, {}
    data = {0: bytearray(), 1: bytearray()}
    for name, tensor in state.items():
        chunks = []
        for offsets, block in _blocks(tensor):
            rank = len(chunks) % 2
            torch.save(block, buffer := io.BytesIO())
            place = _StorageInfo(f"__{rank}_0.distcp", len(data[rank]), len(buffer.getvalue()))
            data[rank] += buffer.getvalue()
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), block.shape))
            places[MetadataIndex(name, offsets)] = place
        tensors[name] = TensorStorageMetadata(TensorProperties(dtype=tensor.dtype), tensor.shape, chunks)
    for rank, content in data.items():
        (folder / f"__{rank}_0.distcp").write_bytes(content)
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(tensors, None, places)))
    again = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    dcp.load(again, checkpoint_id=folder)
    assert same(again, state), "what this helper wrote is not what DCP reads"
    return folder


def _blocks(tensor: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
    if tensor.dim() != 2 or min(tensor.shape) < 2:
        return [((0,) * tensor.dim(), tensor)]
    rows, columns = tensor.shape[0] // 3, tensor.shape[1] // 2
    return [
        ((row, column), part.clone())
        for row, half in ((0, tensor[:rows]), (rows, tensor[rows:]))
        for column, part in ((0, half[:, :columns]), (columns, half[:, columns:]))
    ]


SOURCES = [
    flat_torch,
    old_torch,
    script_torch,
    one_safetensors,
    sharded_safetensors,
    flat_dcp,
    nested_dcp,
    sharded_dcp,
]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.mark.parametrize("write", SOURCES)
def test_training_goes_on_from_imported_weights(
    store: MemoryStore, tmp_path: Path, write: Callable[[State, Path], Path]
) -> None:
    source, _ = build(seed=1)
    report = hf.import_checkpoint(store, write(source.state_dict(), tmp_path), step=100)
    assert (report.tables, set(report.dense)) == (("emb.0", "emb.1"), {"top.weight", "top.bias"})
    assert (report.info.step, report.info.kind, report.info.rows_written) == (100, Kind.FULL, 340)

    model, optimizers = build(seed=2)
    with hf.Checkpointer(store, model=model, optimizer=optimizers, save=hf.EverySteps(5)) as guard:
        assert guard.resume() == 100
        assert same(model.state_dict(), source.state_dict())
        for step in range(8):
            guard.step(loss=train_step(model, optimizers, step))
    assert hf.open_run(store).verify() == []
    again, fresh = build(seed=3)
    assert hf.open_run(store).restore(model=again, optimizer=fresh).step == 108
    assert same(snapshot(again, fresh), snapshot(model, optimizers))


def test_what_is_not_the_model_is_left_out_and_said_so(store: MemoryStore, tmp_path: Path) -> None:
    report = hf.import_checkpoint(store, nested_dcp(build()[0].state_dict(), tmp_path))
    assert report.skipped.keys() == {
        "epoch",
        "optim.state.emb.0.weight.exp_avg",
        "optim.state.emb.0.weight.step",
    }


def test_pickled_objects_of_a_dcp_checkpoint_are_left_out(store: MemoryStore, tmp_path: Path) -> None:
    dcp.save({"model": {**build()[0].state_dict(), "seen": {1, 2}}}, checkpoint_id=tmp_path)
    report = hf.import_checkpoint(store, tmp_path)
    assert "pickled" in report.skipped["seen"]


def test_a_resume_says_that_optimizers_start_afresh(
    store: MemoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hf.import_checkpoint(store, flat_torch(build(seed=1)[0].state_dict(), tmp_path))
    model, optimizers = build(seed=2)
    with (
        caplog.at_level(logging.WARNING, "holdfast"),
        hf.Checkpointer(store, model=model, optimizer=optimizers) as guard,
    ):
        guard.resume()
    assert "weights only" in caplog.text
    assert not optimizers[0].state


def test_a_model_that_does_not_fit_the_imported_weights_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    hf.import_checkpoint(store, flat_torch(build(seed=1)[0].state_dict(), tmp_path))
    model = nn.ModuleDict({"emb": build()[0].emb, "top": nn.Linear(8, 1), "new": nn.Linear(2, 2)})
    with hf.Checkpointer(store, model=model) as guard, pytest.raises(ModelMismatch, match=r"new\.weight"):
        guard.resume()
    with hf.Checkpointer(store, model=model) as guard:
        assert guard.resume(strict=False) == 0


def test_tables_are_chosen_by_name_and_a_prefix_is_taken_off(store: MemoryStore, tmp_path: Path) -> None:
    state = {
        "module.users.weight": torch.randn(6, 2),
        "module.items": torch.randn(5, 3).bfloat16(),
        "module.items_bias": torch.randn(5),
        "module.ids.weight": torch.arange(6).reshape(3, 2),
        "other.users.weight": torch.randn(6, 2),
    }
    report = hf.import_checkpoint(
        store, flat_torch(state, tmp_path), tables=["users", "item*", "users"], prefix="module."
    )
    assert report.tables == ("users", "items")
    assert report.dense == ("items_bias", "ids.weight")
    assert list(report.skipped) == ["other.users.weight"]
    rows = hf.open_run(store).read_rows("items", [4, 0])["weight"]
    assert torch.equal(rows, state["module.items"][[4, 0]])


def test_a_table_tied_to_a_linear_is_imported_once_under_the_tables_name(store: MemoryStore, tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 9, bias=False)
            self.emb = nn.Embedding(9, 4)
            self.emb.weight = self.head.weight

    source = Tied()
    report = hf.import_checkpoint(store, flat_torch(source.state_dict(), tmp_path))
    assert (report.tables, report.dense) == (("emb",), ())
    assert report.skipped == {"head.weight": "is the same tensor as emb.weight"}
    model = Tied()
    hf.open_run(store).restore(model=model)
    assert torch.equal(model.head.weight, source.head.weight)


def test_scalars_empty_tensors_and_odd_types_survive(store: MemoryStore, tmp_path: Path) -> None:
    state = {
        "emb.weight": torch.randn(3, 2),
        "emb_of_nothing.weight": torch.empty(0, 4),
        "count": torch.tensor(7),
        "flag": torch.tensor([True]),
        "half": torch.randn(3).half(),
        "empty": torch.empty(0, 3),
    }
    save_file(state, tmp_path / "odd.safetensors")
    report = hf.import_checkpoint(store, tmp_path / "odd.safetensors")
    assert sorted(report.tables) == ["emb", "emb_of_nothing"]
    weights = hf.open_run(store).state()["training"]["model"]
    assert same(weights, {name: state[name] for name in ("count", "flag", "half", "empty")})


def test_a_table_larger_than_a_frame_is_imported_in_several(tmp_path: Path) -> None:
    weight = torch.randn(100_000, 100)  # 40 MB, a frame holds 32 MiB
    written: list[int] = []
    source = one_safetensors({"emb.weight": weight}, tmp_path)
    report = hf.import_checkpoint(tmp_path / "run", source, progress=written.append)
    assert len(written) > 1
    assert sum(written) >= weight.nbytes
    model = nn.ModuleDict({"emb": nn.Embedding.from_pretrained(torch.zeros_like(weight))})
    hf.open_run(tmp_path / "run").restore(model=model)
    assert torch.equal(model["emb"].weight, weight)
    assert report.info.rows_written == 100_000


def test_a_run_that_holds_checkpoints_is_refused_and_unchanged(store: MemoryStore, tmp_path: Path) -> None:
    source = flat_torch(build()[0].state_dict(), tmp_path)
    first = hf.import_checkpoint(store, source)
    objects = [info.name for info in store.list()]
    with pytest.raises(RunError, match="already holds checkpoints"):
        hf.import_checkpoint(store, source, step=1)
    assert [info.name for info in store.list()] == objects
    assert hf.open_run(store).checkpoints() == [first.info]


def test_an_import_that_was_interrupted_can_be_repeated(tmp_path: Path, store: MemoryStore) -> None:
    source = flat_torch(build()[0].state_dict(), tmp_path)

    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hf.import_checkpoint(store, source, progress=interrupt)
    assert hf.open_run(store).checkpoints() == []
    assert hf.import_checkpoint(store, source).info.term == 2


class Harmful:
    """Unpickled, it would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("kind", ["torch", "dcp"])
def test_code_in_a_foreign_checkpoint_is_never_run(store: MemoryStore, tmp_path: Path, kind: str) -> None:
    harm = tmp_path / "harm"
    if kind == "torch":
        torch.save({"emb.weight": torch.ones(2, 2), "evil": Harmful(harm)}, tmp_path / "source")
    else:
        flat_dcp({"emb.weight": torch.ones(2, 2)}, tmp_path / "source")
        (tmp_path / "source" / ".metadata").write_bytes(pickle.dumps(Harmful(harm)))
    with pytest.raises(ConfigurationError, match="source"):
        hf.import_checkpoint(store, tmp_path / "source")
    assert not harm.exists()
    assert not list(store.list())


def test_what_cannot_be_imported_is_named(store: MemoryStore, tmp_path: Path) -> None:
    source = flat_torch(build()[0].state_dict(), tmp_path)
    with pytest.raises(ConfigurationError, match=r"no such file"):
        hf.import_checkpoint(store, tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match=r"neither"):
        hf.import_checkpoint(store, tmp_path)
    with pytest.raises(ConfigurationError, match=r"'user\*'.*emb\.0"):
        hf.import_checkpoint(store, source, tables=["*emb*", "user*"])
    with pytest.raises(ConfigurationError, match=r"'net\.'.*emb\.0\.weight"):
        hf.import_checkpoint(store, source, prefix="net.")
    with pytest.raises(ConfigurationError, match="step=-1"):
        hf.import_checkpoint(store, source, step=-1)
    (tmp_path / "notes.txt").write_text("these are no weights")
    with pytest.raises(ConfigurationError, match=r"notes\.txt"):
        hf.import_checkpoint(store, tmp_path / "notes.txt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(ConfigurationError, match="state_dict"):
        hf.import_checkpoint(store, tmp_path / "list.pt")
    assert not list(store.list())


@pytest.mark.parametrize("write", [flat_torch, one_safetensors, flat_dcp])
def test_a_file_that_was_cut_short_is_named(
    store: MemoryStore, tmp_path: Path, write: Callable[[State, Path], Path]
) -> None:
    source = write(build()[0].state_dict(), tmp_path)
    victim = next(source.glob("*.distcp")) if source.is_dir() else source
    victim.write_bytes(victim.read_bytes()[:-600])
    with pytest.raises(DamagedData, match=victim.name):
        hf.import_checkpoint(store, source)
    assert hf.open_run(store).checkpoints() == []


def test_an_index_that_lies_is_named(store: MemoryStore, tmp_path: Path) -> None:
    index = sharded_safetensors(build()[0].state_dict(), tmp_path) / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    for lie in ({"emb.0.weight": "../model.safetensors"}, {"emb.9.weight": places["emb.0.weight"]}):
        index.write_text(json.dumps({"weight_map": {**places, **lie}}))
        with pytest.raises(DamagedData, match=next(iter(lie))):
            hf.import_checkpoint(store, tmp_path)
