"""A checkpoint as a plain file, and the difference of two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import holdfast as hf
from holdfast.errors import CheckpointNotFound, ConfigurationError, DamagedData
from holdfast.storage import MemoryStore
from tests.tiny import DIM, Tiny, build, train_step

STEPS = 12
SLOTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, kw_only=True)
class Trained:
    store: MemoryStore
    states: dict[int, dict[str, Tensor]]  # the model after each step
    slots: dict[str, Tensor]  # of the first table, at the end

    @property
    def run(self) -> hf.Run:
        return hf.open_run(self.store)


@pytest.fixture(scope="module")
def trained() -> Trained:
    """A run with a baseline and deltas."""
    store = MemoryStore()
    states = {}
    model, optimizers = build()
    with hf.Checkpointer(
        store,
        model=model,
        optimizer=optimizers,
        save=hf.EverySteps(4),
        strategy=hf.Consecutive(),
        retention=hf.KeepAll(),
        overlap=hf.Overlap.WAIT,
    ) as guard:
        for step in range(STEPS):
            guard.step(loss=train_step(model, optimizers, step))
            states[guard.steps] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    held = optimizers[0].state[model.emb[0].weight]
    return Trained(store=store, states=states, slots={f"emb.0.weight.{name}": held[name] for name in SLOTS})


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("step", [4, 8, STEPS])
def test_stock_safetensors_reads_an_export_of_any_checkpoint(trained: Trained, tmp_path: Path, step: int) -> None:
    assert trained.run.export(tmp_path / "model.safetensors", step).step == step
    assert equal(load_file(tmp_path / "model.safetensors"), trained.states[step])


def test_stock_torch_loads_an_export_into_the_model(trained: Trained, tmp_path: Path) -> None:
    trained.run.export(tmp_path / "model.pt")
    model = Tiny()
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert equal(model.state_dict(), trained.states[STEPS])


def test_slots_are_exported_when_asked_for(trained: Trained, tmp_path: Path) -> None:
    trained.run.export(tmp_path / "model.safetensors", slots=True)
    exported = load_file(tmp_path / "model.safetensors")
    assert equal({name: exported[name] for name in trained.slots}, trained.slots)


def test_progress_of_an_export_counts_every_row_that_was_read(trained: Trained, tmp_path: Path) -> None:
    done: list[int] = []
    trained.run.export(tmp_path / "model.pt", 4, progress=done.append)
    rows = sum(spec.rows for spec in trained.run.tables(4))
    assert sum(done) >= rows * DIM * 4 * (1 + len(SLOTS))


def test_an_export_that_fails_leaves_no_file_behind(trained: Trained, tmp_path: Path) -> None:
    damaged = MemoryStore()
    for info in trained.store.list():
        damaged.put(info.name, trained.store.get(info.name))
    bundle = next(info.name for info in damaged.list() if info.name.endswith(".safetensors"))
    data = bytearray(damaged.get(bundle))
    data[-1] ^= 1
    damaged.delete([bundle])
    damaged.put(bundle, data)
    with pytest.raises(DamagedData, match="checksum"):
        hf.open_run(damaged).export(tmp_path / "model.pt")
    assert not list(tmp_path.iterdir())


def test_an_unknown_suffix_a_missing_folder_and_a_missing_step_are_named(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.onnx"):
        trained.run.export(tmp_path / "model.onnx")
    with pytest.raises(ConfigurationError, match="does not exist"):
        trained.run.export(tmp_path / "nowhere" / "model.pt")
    with pytest.raises(CheckpointNotFound, match="step 5"):
        trained.run.export(tmp_path / "model.pt", 5)


def test_diff_counts_the_rows_that_changed_and_by_how_much(trained: Trained) -> None:
    found = {each.table: each for each in trained.run.diff(4, STEPS)}
    assert found.keys() == {"emb.0", "emb.1"}
    for name, each in found.items():
        before, after = trained.states[4][f"{name}.weight"], trained.states[STEPS][f"{name}.weight"]
        assert each.rows == len(before)
        assert each.changed_rows == int((before != after).any(1).sum()) > 0
        assert each.largest_change == pytest.approx(float((before.double() - after.double()).abs().max()))


def test_a_checkpoint_does_not_differ_from_itself(trained: Trained) -> None:
    assert [(each.changed_rows, each.largest_change) for each in trained.run.diff(8, 8)] == [(0, 0.0), (0, 0.0)]


def test_diff_sees_nan_rows_new_tables_and_tables_without_columns_or_rows() -> None:
    store = MemoryStore()
    before = nn.ModuleDict({"a": nn.Embedding(5, 2), "flat": nn.Embedding(3, 0), "none": nn.Embedding(0, 4)})
    with hf.Checkpointer(store, model=before, retention=hf.KeepAll()) as guard:
        guard.step()
        guard.save(wait=True)
    after = nn.ModuleDict({**before, "b": nn.Embedding(4, 2)})
    with hf.Checkpointer(store, model=after, retention=hf.KeepAll(), strategy=hf.Full()) as guard:
        guard.resume(strict=False)
        after["a"].weight.data[3, 1] = math.nan
        guard.mark("a")
        guard.step()
    found = {each.table: each for each in hf.open_run(store).diff(1, 2)}
    assert (found["a"].changed_rows, math.isnan(found["a"].largest_change)) == (1, True)
    assert (found["b"].only_in, found["b"].changed_rows) == ("second", 4)
    assert found["flat"].changed_rows == found["none"].changed_rows == 0
