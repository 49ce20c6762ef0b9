"""Runs of a Cluster and of a Checkpointer are of one kind: each goes on with what the other saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.nn import functional as F

import holdfast as hf
from holdfast.cluster.server.shards import shards_of
from holdfast.policy import Optimizer
from tests.cli.command import holdfast as command
from tests.cluster.processes import programs
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, newest_checkpoint, saved_at_end

Columns = dict[str, dict[str, np.ndarray[Any, np.dtype[np.float32]]]]  # by parameter, then by slot


Kinds = tuple[type[torch.optim.Optimizer], type[torch.optim.Optimizer]]  # of tables on servers, of the rest


class InTorch:
    """A plain model and the optimizers that are stored like those of a job."""

    def __init__(self, kinds: Kinds, lr: float) -> None:
        self.model = programs.Net()
        self.model.emb[2].sparse = kinds[0] is kinds[1]  # dense in a job, where Adam moves every row of it
        large = [*self.model.emb[0].parameters(), *self.model.emb[1].parameters()]
        rest = [*self.model.emb[2].parameters(), *self.model.top.parameters()]
        groups = zip(kinds, (large, rest), strict=True)
        self.optimizers = [kind(each, lr=lr) for kind, each in groups]  # type: ignore[call-arg]

    def go_on(self, url: Path, step: int, look: Callable[[], object] = lambda: None) -> int:
        """Resume, look at it, and train up to a step; where it resumed."""
        settings = {"save": hf.Never(), "strategy": hf.Full(), "retention": hf.KeepAll()}
        loader = programs.loader_of(0, 1)
        with hf.Checkpointer(url, model=self.model, optimizer=self.optimizers, loader=loader, **settings) as guard:  # type: ignore[arg-type]
            begun = guard.resume()
            look()
            for dense, ids, labels in guard.batches(epochs=None):
                self.model.zero_grad()
                F.binary_cross_entropy_with_logits(self.model(dense, ids), labels).backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                guard.step()
                if guard.steps >= step:
                    break
        return begun

    def columns(self) -> Columns:
        """What it holds of each parameter."""
        states = {id(each): state for optimizer in self.optimizers for each, state in optimizer.state.items()}
        return {
            name: {"weight": each.detach().numpy(), **{slot: np.asarray(of) for slot, of in states[id(each)].items()}}
            for name, each in self.model.named_parameters()
        }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (hf.Adagrad(0.05), torch.optim.Adagrad),
        pytest.param(hf.SGD(0.05), torch.optim.SGD, marks=pytest.mark.slow),
    ],
)
def test_a_plain_model_goes_on_with_a_job_s_run_and_a_job_with_that_of_a_plain_model(
    ours: Optimizer, theirs: type[torch.optim.Optimizer], start_job: Callable[..., RunningJob], tmp_path: Path
) -> None:
    options = {"servers": 2, "optimizer": ours, "dense_optimizer": ours}
    job = start_job(**options, strategy=hf.Full(), retention=hf.KeepAll(), save=hf.EverySteps(4))
    job.run_to(4)
    job.finish(6)
    assert InTorch((theirs, theirs), 0.05).go_on(job.url, 11) == 6
    job = start_job(**options, strategy=hf.Full(), retention=hf.KeepAll())
    job.finish(15)
    assert [each.step for each in hf.open_run(job.url).checkpoints()] == [4, 6, 11, 15]

    recipe = Recipe(**options)
    twin = Twin(recipe)
    twin.run_to(15)
    found, expected = saved_at_end(job.url, recipe), twin.values()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-5, atol=1e-6, err_msg=name)
    inspect(job.url, twin, tmp_path)


@pytest.mark.slow
def test_moments_of_adam_travel_both_ways_and_rows_that_torch_had_go_on_with_its_count_of_steps(
    start_job: Callable[..., RunningJob],
) -> None:
    ours = {"optimizer": hf.Adam(0.01), "dense_optimizer": hf.Adam(0.01)}
    recipe = Recipe(servers=1, **ours)
    job = start_job(servers=2, **ours)
    job.finish(6)
    plain = InTorch((torch.optim.SparseAdam, torch.optim.Adam), 0.01)

    def compare(step: int) -> None:
        saved, columns = on_servers(job.url, recipe), plain.columns()
        assert saved.keys() == columns.keys()
        for name, found in columns.items():
            assert found.pop("step") == step
            steps = saved[name].pop("step")
            assert np.all(steps == step) if step == 11 else np.all(steps <= step)
            for slot, values in saved[name].items():
                assert np.array_equal(values.reshape(-1), found[slot].reshape(-1)), (name, slot)

    assert plain.go_on(job.url, 11, look=lambda: compare(6)) == 6
    compare(11)
    job = start_job(servers=2, **ours)
    job.finish(15)
    assert hf.open_run(job.url).checkpoints()[-1].step == 15
    assert hf.open_run(job.url).verify() == []


def on_servers(url: Path, recipe: Recipe) -> Columns:
    """What a lone server would hold of each parameter, if the job were resumed now."""
    shard = newest_checkpoint(url, recipe, 0)
    found: Columns = {f"{each.table}.weight": dict(each.columns) for each in shards_of(shard)}
    for part in shard.dense.piece.parts:
        values = shard.dense.values[part.at : part.at + part.rows * part.width]
        found[part.name] = {"weight": values, **shard.dense.slots[part.name]}
    return found


def inspect(url: Path, twin: Twin, folder: Path) -> None:
    """What people do with a run."""
    file = folder / "exported.safetensors"
    assert "15" in command("ls", url)
    command("verify", url)
    command("export", url, file)
    exported = safetensors.numpy.load_file(file)
    state = programs.build_net().state_dict()
    assert exported.keys() >= state.keys() and all(exported[name].shape == state[name].shape for name in state)
    np.testing.assert_allclose(exported["emb.0.weight"], twin.exchange.table("emb.0.weight"), rtol=2e-5, atol=1e-6)
    served = programs.build_net()
    with hf.Follower(url, served, each=True) as follower:
        while follower.update():
            pass
    for name, values in served.state_dict().items():
        assert np.array_equal(values.numpy(), exported[name]), name
    loaded = programs.build_net().state_dict()
    dcp.load(loaded, storage_reader=hf.dcp.Reader(url, root=None))
    command("export", url, folder / "exported", "--format", "dcp")
    unpacked = {"model": programs.build_net().state_dict()}
    dcp.load(unpacked, checkpoint_id=folder / "exported")
    for found in (loaded, unpacked["model"]):
        for name, values in found.items():
            assert np.array_equal(values.numpy(), exported[name]), name
