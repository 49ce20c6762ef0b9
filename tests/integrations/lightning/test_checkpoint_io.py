"""``hf.lightning.CheckpointIO``: Lightning's own checkpoints as runs, under ``ModelCheckpoint`` and ``ckpt_path=``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf
from holdfast.errors import ConfigurationError, DamagedData, UnsupportedState
from tests.integrations.lightning.program import BATCH, Module, everything, quiet, samples
from tests.tiny import same

pytestmark = pytest.mark.filterwarnings("ignore")


def fit(folder: Path, *, io: Any, epochs: int, ckpt_path: Path | None = None) -> tuple[pl.Trainer, Module]:
    quiet()
    module = Module()
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[io],
        callbacks=[ModelCheckpoint(folder, save_last=True, save_top_k=1, monitor="val")],
    )
    pl.seed_everything(11)
    loader = DataLoader(TensorDataset(*samples()), batch_size=BATCH)
    trainer.fit(module, loader, loader, ckpt_path=ckpt_path)
    return trainer, module


def test_lightning_continues_from_a_run_as_from_its_own_file(tmp_path: Path) -> None:
    states = []
    for number, io in enumerate((hf.lightning.CheckpointIO(), TorchCheckpointIO())):
        folder = tmp_path / str(number)
        fit(folder, io=io, epochs=1)
        states.append(everything(*fit(folder, io=io, epochs=2, ckpt_path=folder / "last.ckpt")))
    assert same(*states)


def test_a_path_is_a_run_that_holds_the_last_checkpoint_and_can_be_removed(tmp_path: Path) -> None:
    io = hf.lightning.CheckpointIO()
    _, module = fit(tmp_path, io=io, epochs=2)
    last = tmp_path / "last.ckpt"
    run = hf.open_run(str(last))
    assert [info.step for info in run.checkpoints()] == [30] and run.verify() == []
    restored = Module()
    run.restore(model=restored, strict=False)
    assert torch.equal(restored.users.weight, module.users.weight)
    io.remove_checkpoint(last)
    assert not last.exists()
    with pytest.raises(FileNotFoundError, match=r"last\.ckpt"):
        io.load_checkpoint(last)


def test_files_that_lightning_wrote_are_still_read(tmp_path: Path) -> None:
    TorchCheckpointIO().save_checkpoint({"global_step": 3}, tmp_path / "old.ckpt")
    assert hf.lightning.CheckpointIO().load_checkpoint(tmp_path / "old.ckpt") == {"global_step": 3}


def test_everything_comes_back_with_its_types(tmp_path: Path) -> None:
    io = hf.lightning.CheckpointIO()
    weights: dict[str, Any] = {"w": torch.ones(2), "extra": (1, "a")}
    given = {"global_step": 7, "state_dict": weights, "betas": (0.9, 0.99), "by number": {4: None}}
    io.save_checkpoint(given, tmp_path / "run")
    found = io.load_checkpoint(tmp_path / "run", map_location="cpu")
    assert torch.equal(found["state_dict"].pop("w"), weights.pop("w"))
    assert found == given


def test_what_would_need_pickle_is_refused_by_its_path_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedState, match="hyper_parameters"):
        hf.lightning.CheckpointIO().save_checkpoint({"hyper_parameters": {"net": object()}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_a_guard_is_not_written_over(tmp_path: Path) -> None:
    with hf.Checkpointer(str(tmp_path / "run"), model=Module()) as guard:
        guard.save()
    with pytest.raises(ConfigurationError, match="other paths"):
        hf.lightning.CheckpointIO().save_checkpoint({}, tmp_path / "run")


def test_damage_is_noticed(tmp_path: Path) -> None:
    io = hf.lightning.CheckpointIO()
    io.save_checkpoint({"state_dict": {"w": torch.arange(5000)}}, tmp_path / "run")
    files = [each for each in (tmp_path / "run").rglob("*") if each.is_file()]
    bundle = next(each for each in files if 40_000 <= each.stat().st_size < 100_000)
    data = bytearray(bundle.read_bytes())
    data[len(data) // 2] ^= 1
    bundle.chmod(0o644)
    bundle.write_bytes(data)
    with pytest.raises(DamagedData):
        io.load_checkpoint(tmp_path / "run")
