"""Runs of a Cluster and of a Checkpointer are of one kind: each goes on with what the other saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch.nn import functional as F

import holdfast as hf
from holdfast.policy import Optimizer
from tests.cli.command import holdfast as command
from tests.cluster.processes import programs
from tests.cluster.processes.jobs import RunningJob
from tests.cluster.processes.twin import Recipe, Twin, saved_at_end


def go_on_in_torch(url: Path, step: int, kind: type[torch.optim.Optimizer], lr: float) -> int:
    """Resume with a plain model, and train up to a step; where it resumed."""
    model = programs.Net()
    large = [*model.emb[0].parameters(), *model.emb[1].parameters()]
    rest = [*model.emb[2].parameters(), *model.top.parameters()]
    optimizers = [kind(large, lr=lr), kind(rest, lr=lr)]  # type: ignore[call-arg]
    settings = {"save": hf.Never(), "strategy": hf.Full(), "retention": hf.KeepAll()}
    loader = programs.loader_of(0, 1)
    with hf.Checkpointer(url, model=model, optimizer=optimizers, loader=loader, **settings) as guard:  # type: ignore[arg-type]
        begun = guard.resume()
        for dense, ids, labels in guard.batches(epochs=None):
            model.zero_grad()
            F.binary_cross_entropy_with_logits(model(dense, ids), labels).backward()
            for optimizer in optimizers:
                optimizer.step()
            guard.step()
            if guard.steps >= step:
                break
    return begun


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
    assert go_on_in_torch(job.url, 11, theirs, 0.05) == 6
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
