"""Whoever reads a run of a divided model sees whole tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import holdfast as hf
from tests.jobs.arrays import Arrays, assert_same
from tests.jobs.job import Jobs
from tests.session.sharded.model import Model
from tests.session.sharded.test_meshes import saved


@pytest.fixture(scope="module")
def run(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Arrays]:
    """One of two ranks, and what it holds."""
    url = str(tmp_path_factory.mktemp("sharded") / "run")
    saved(jobs.get(2), url, "columns", steps=2, every=1)
    found: Arrays = jobs.get(2).call("shadow", step=2)[0]
    return url, found


def weights(held: Arrays) -> Arrays:
    return {name: held[name] for name in Model().state_dict()}


def assert_weights(found: dict[str, torch.Tensor], held: Arrays) -> None:
    assert found.keys() == weights(held).keys()
    for name, values in weights(held).items():
        assert found[name].numpy().tobytes() == values.tobytes(), name


def test_a_run_restores_into_a_plain_model(run: tuple[str, Arrays]) -> None:
    model = Model()
    hf.open_run(run[0]).restore(model=model)
    assert_weights(model.state_dict(), run[1])


@pytest.mark.parametrize("how", ["fsdp", "columns"])
def test_a_run_restores_into_a_divided_model_without_a_checkpointer(
    jobs: Jobs, run: tuple[str, Arrays], how: str
) -> None:
    jobs.get(2).call("build", how=how, seed=5)
    assert jobs.get(2).call("restore", url=run[0]) == [2, 2]
    assert_same(jobs.get(2).call("held")[0], run[1])


def test_an_export_holds_whole_tensors(run: tuple[str, Arrays], tmp_path: Path) -> None:
    hf.open_run(run[0]).export(tmp_path / "model.safetensors")
    assert_weights(load_file(tmp_path / "model.safetensors"), run[1])


def test_an_export_for_dcp_holds_whole_tensors(run: tuple[str, Arrays], tmp_path: Path) -> None:
    hf.open_run(run[0]).export(tmp_path / "dcp", format="dcp")
    state = {"model": Model().state_dict()}
    dcp.load(state, checkpoint_id=str(tmp_path / "dcp"))
    assert_weights(state["model"], run[1])


def test_a_follower_serves_whole_tensors(run: tuple[str, Arrays]) -> None:
    model = Model()
    follower = hf.Follower(run[0], model=model)
    follower.update()
    assert_weights(model.state_dict(), run[1])


def test_a_state_is_shown_whole(run: tuple[str, Arrays]) -> None:
    training = hf.open_run(run[0]).state()["training"]
    moments = training["optimizers"][0]["state"]["up.weight"]["exp_avg"]
    assert moments.numpy().tobytes() == run[1]["up.weight.exp_avg"].tobytes()
    assert not hf.open_run(run[0]).verify()
