"""Checkpoints of a Checkpointer and of shards, read by ``dcp.load`` and exported as DCP's own folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim import Adam, Optimizer, SparseAdam
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.errors import ConfigurationError, RunError

pytestmark = [pytest.mark.filterwarnings("ignore:torch.distributed is"), pytest.mark.timeout(600)]


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.EmbeddingBag(500, 8, mode="sum", sparse=True)
        self.top = nn.Linear(8, 1)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.emb(ids))


class Counter:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {"count": 7, "window": (1, torch.arange(3))}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state


def train(model: nn.Module, optimizers: list[Optimizer], steps: int, guard: hf.Checkpointer) -> None:
    for number in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randint(0, 500, (4, 6)) // (number + 1)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        guard.step()


@pytest.fixture(scope="module", params=[hf.Exact(), pytest.param(hf.Bits(8), marks=pytest.mark.slow)])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, nn.Module, list[Optimizer]]:
    """A baseline and two deltas on it."""
    torch.manual_seed(0)
    url = str(tmp_path_factory.mktemp("native") / "run")
    model = Clicks()
    optimizers: list[Optimizer] = [SparseAdam(list(model.emb.parameters())), Adam(model.top.parameters())]
    guard = hf.Checkpointer(
        url,
        model=model,
        optimizer=optimizers,
        extra={"counter": Counter()},
        save=hf.EverySteps(2),
        strategy=hf.Consecutive(),
        precision=request.param,
        overlap=hf.Overlap.WAIT,
    )
    with guard:
        guard.resume()
        train(model, optimizers, 6, guard)
    restored = Clicks()
    again: list[Optimizer] = [SparseAdam(list(restored.emb.parameters())), Adam(restored.top.parameters())]
    hf.open_run(url).restore(model=restored, optimizer=again)
    return url, restored, again


def zeros(state: Any) -> Any:
    if isinstance(state, Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: zeros(value) for key, value in state.items()}
    return [zeros(each) for each in state] if isinstance(state, list) else state


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


Trained = tuple[str, nn.Module, list[Optimizer]]


def test_model_alone(trained: Trained) -> None:
    url, model, _ = trained
    state = zeros(model.state_dict())
    dcp.load(state, storage_reader=hf.dcp.Reader(url, root=None))
    assert equal(state, dict(model.state_dict()))


def test_model_and_optimizers_as_dcp_names_them(trained: Trained) -> None:
    url, model, optimizers = trained
    of_model, of_optimizers = get_state_dict(model, optimizers)
    state = {"model": zeros(of_model), "optimizer": {"state": zeros(of_optimizers["state"])}, "step": 0}
    dcp.load(state, storage_reader=hf.dcp.Reader(url))
    assert equal(state["model"], of_model)
    assert equal(state["optimizer"], {"state": of_optimizers["state"]})
    assert state["step"] == 6


def test_extras_and_options_come_as_values(trained: Trained) -> None:
    url, _, _ = trained
    state: dict[str, Any] = {"extra": {"counter": {"count": 0, "window": None}}}
    dcp.load(state, storage_reader=hf.dcp.Reader(url))
    assert equal(state["extra"]["counter"], {"count": 7, "window": (1, torch.arange(3))})


def test_older_checkpoints_and_other_types(trained: Trained) -> None:
    url, model, _ = trained
    kept = [info.step for info in hf.open_run(url).checkpoints()]
    assert kept == [2, 4, 6]
    target = {"emb.weight": torch.zeros(500, 8, dtype=torch.float64)}
    dcp.load(target, storage_reader=hf.dcp.Reader(url, step=6, root=None))
    assert torch.equal(target["emb.weight"], model.state_dict()["emb.weight"].double())
    dcp.load(target, storage_reader=hf.dcp.Reader(url, step=2, root=None))
    other = Clicks()
    hf.open_run(url).restore(2, model=other)
    assert torch.equal(target["emb.weight"], other.emb.weight.double())


def test_exported_folder_is_one_of_dcp(trained: Trained, tmp_path: Path) -> None:
    url, model, optimizers = trained
    result = CliRunner().invoke(app, ["export", url, str(tmp_path / "folder"), "--format", "dcp"])
    assert result.exit_code == 0, result.output
    of_model, of_optimizers = get_state_dict(model, optimizers)
    state = {"model": zeros(of_model), "optimizer": {"state": zeros(of_optimizers["state"])}}
    dcp.load(state, checkpoint_id=tmp_path / "folder")
    assert equal(state["model"], of_model)
    assert equal(state["optimizer"]["state"], of_optimizers["state"])
    dcp_to_torch_save(tmp_path / "folder", tmp_path / "all.pt")
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    assert equal(found["model"], dict(of_model))
    assert found["extra"]["counter"]["count"] == 7
    with pytest.raises(ConfigurationError, match="exists already"):
        hf.open_run(url).export(tmp_path / "folder", format="dcp")


def test_checkpoint_of_dcp_is_exported_and_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.integrations.dcp import export

    monkeypatch.setattr(export, "_PIECE_BYTES", 4096)  # tables are cut
    url, state = str(tmp_path / "run"), {"model": Clicks().state_dict(), "epoch": 3, "pair": (1, torch.ones(2))}
    dcp.save(state, storage_writer=hf.dcp.Writer(url, step=5))
    hf.open_run(url).export(tmp_path / "folder", format="dcp")
    loaded = zeros({**state, "epoch": 0, "pair": 0})
    dcp.load(loaded, checkpoint_id=tmp_path / "folder")
    assert equal(loaded, {**state, "model": dict(state["model"])})  # type: ignore[call-overload]
    report = hf.import_checkpoint(str(tmp_path / "imported"), tmp_path / "folder")
    assert report.tables == ("emb",)
    restored = Clicks()
    hf.open_run(str(tmp_path / "imported")).restore(model=restored)
    assert equal(dict(restored.state_dict()), dict(state["model"]))  # type: ignore[call-overload]


def test_file_of_a_checkpoint_of_dcp_is_refused_with_the_way_out(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    dcp.save({"a": torch.ones(3)}, storage_writer=hf.dcp.Writer(url, step=5))
    with pytest.raises(RunError, match="export it as a DCP folder"):
        hf.open_run(url).export(tmp_path / "file.safetensors")
