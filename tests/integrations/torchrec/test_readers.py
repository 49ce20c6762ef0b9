"""Whoever reads a run finds whole tables under the names of an unsharded model, however the job divided them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

import holdfast as hf
from tests.integrations.torchrec.joining import joined
from tests.integrations.torchrec.model import DIM, Plan
from tests.integrations.torchrec.plain import PlainModel, held_by, plain_optimizers, plain_step
from tests.integrations.torchrec.test_resume import saved
from tests.jobs.arrays import Arrays, assert_same
from tests.jobs.job import Jobs

SPLIT = Plan(bags="cw rw cw tw cw cw rw", sequences="tw rw cw", world=2)
ROWS = Plan(bags="tw rw rw tw rw tw rw", sequences="tw rw tw", world=2)
NAME = "bags.embedding_bags.b0"


@pytest.fixture(scope="module")
def run(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Arrays, Arrays]:
    """A run of tables in strips with deltas in a grid; what it held at steps 4 and 6."""
    url = str(tmp_path_factory.mktemp("split") / "run")
    job = jobs.get(2)
    saved(job, url, SPLIT, "adagrad", steps=6, every=2, strategy=hf.Grid(), retention=hf.KeepAll())
    return url, joined(job.call("shadow", step=4)), joined(job.call("shadow", step=6))


def test_a_plain_model_restores_it(run: tuple[str, Arrays, Arrays]) -> None:
    url, _, newest = run
    model = PlainModel()
    optimizers = plain_optimizers(model, "adagrad")
    hf.open_run(url).restore(model=model, optimizer=optimizers)
    assert_same(held_by(model, optimizers), newest)


def test_tables_rows_exports_and_differences_are_those_of_whole_tables(
    run: tuple[str, Arrays, Arrays], tmp_path: Path
) -> None:
    url, before, newest = run
    opened = hf.open_run(url)
    assert not opened.verify()
    specs = {spec.name: spec for spec in opened.tables()}
    assert specs[NAME].weight.row_shape == (DIM,)
    rows = opened.read_rows(NAME, [3, 1])
    assert np.array_equal(rows["weight"].numpy(), newest[f"{NAME}.weight"][[3, 1]])
    assert np.array_equal(rows["sum"].numpy(), newest[f"{NAME}.weight.momentum1"][[3, 1]])
    opened.export(tmp_path / "all.safetensors", slots=True)
    exported = safetensors.torch.load_file(tmp_path / "all.safetensors")
    assert np.array_equal(exported[f"{NAME}.weight"].numpy(), newest[f"{NAME}.weight"])
    assert np.array_equal(exported[f"{NAME}.weight.sum"].numpy(), newest[f"{NAME}.weight.momentum1"])
    changed = (before[f"{NAME}.weight"] != newest[f"{NAME}.weight"]).any(1).sum()
    assert {each.table: each.changed_rows for each in opened.diff(4, 6)}[NAME] == changed


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_dcp_loads_it_into_a_plain_model_from_the_run_and_from_a_folder(
    run: tuple[str, Arrays, Arrays], tmp_path: Path
) -> None:
    url, before, newest = run
    hf.open_run(url).export(tmp_path / "folder", format="dcp")
    sums = {"optimizer": {"state": {f"{NAME}.weight": {"sum": torch.zeros(newest[f"{NAME}.weight"].shape)}}}}
    readers: list[tuple[dict[str, Any], Arrays]] = [
        ({"storage_reader": hf.dcp.Reader(url, step=4)}, before),
        ({"storage_reader": hf.dcp.Reader(url)}, newest),
        ({"checkpoint_id": tmp_path / "folder"}, newest),
    ]
    for reader, expected in readers:
        state: dict[str, Any] = {"model": PlainModel().state_dict(), **sums}
        dcp.load(state, **reader)
        assert_same({name: value.numpy() for name, value in state["model"].items()}, _of(expected, state["model"]))
        found = state["optimizer"]["state"][f"{NAME}.weight"]["sum"].numpy()
        assert np.array_equal(found, expected[f"{NAME}.weight.momentum1"])


def _of(held: Arrays, names: Iterable[str]) -> Arrays:
    return {name: held[name] for name in names}


def test_a_follower_serves_every_checkpoint_of_it(run: tuple[str, Arrays, Arrays]) -> None:
    url, before, newest = run
    model = PlainModel()
    with hf.Follower(url, model=model, each=True) as follower:
        while (update := follower.update()) is not None:
            now = {name: value.detach().clone().numpy() for name, value in model.state_dict().items()}
            expected = {4: before, 6: newest}.get(update.checkpoint.step)
            if expected is not None:
                assert_same(now, {name: expected[name] for name in now})
    assert update is None and follower.checkpoint is not None and follower.checkpoint.step == 6


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise"])
def test_a_training_goes_from_torchrec_to_plain_torch_and_back(jobs: Jobs, tmp_path: Path, optimizer: str) -> None:
    url, job = str(tmp_path / "run"), jobs.get(2)
    saved(job, url, ROWS, optimizer, steps=3, every=3)
    torch.manual_seed(5)
    model = PlainModel(sparse=optimizer != "rowwise")  # TorchRec's own takes no sparse gradients
    optimizers = plain_optimizers(model, optimizer)
    with hf.Checkpointer(url, model=model, optimizer=optimizers, save=hf.Never()) as guard:
        assert guard.resume() == 3
        assert_same(held_by(model, optimizers), joined(job.call("shadow", step=3)))
        for step in range(3, 6):
            plain_step(model, optimizers, step)
            guard.step()
    job.call("build", plan=ROWS, optimizer=optimizer, seed=9)
    job.call("guard", url=url)
    assert job.call("resume") == [6, 6]
    assert_same(joined(job.call("held")), held_by(model, optimizers))
