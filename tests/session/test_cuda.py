"""The same loop with its tables on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast as hf
from tests.tiny import Tiny, ids_of, same, snapshot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def build(seed: int = 0) -> tuple[Tiny, list[torch.optim.Optimizer]]:
    torch.manual_seed(seed)
    model = Tiny((100_000, 40)).cuda()
    return model, [torch.optim.Adagrad(model.emb.parameters()), torch.optim.Adam(model.top.parameters())]


def train_step(model: Tiny, optimizers: list[torch.optim.Optimizer], step: int) -> torch.Tensor:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = model(ids_of(step).cuda()).square().mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss


@pytest.mark.parametrize("strategy", [hf.Full(), hf.OneShot(), hf.Consecutive(), hf.Grid()], ids=repr)
def test_tables_on_a_gpu_are_saved_as_deltas_and_come_back_bit_for_bit(tmp_path: Path, strategy: Any) -> None:
    model, optimizers = build()
    states = {}
    settings = {"save": hf.EverySteps(5), "strategy": strategy, "retention": hf.KeepAll(), "overlap": hf.Overlap.WAIT}
    with hf.Checkpointer(tmp_path / "run", model=model, optimizer=optimizers, **settings) as guard:
        for step in range(17):
            guard.step(loss=train_step(model, optimizers, step))
            states[guard.steps] = snapshot(model, optimizers)
    run = hf.open_run(tmp_path / "run")
    for info in run.checkpoints():
        other, others = build(seed=1)
        run.restore(info.step, model=other, optimizer=others)
        assert same(snapshot(other, others), states[info.step])
    assert strategy == hf.Full() or run.checkpoints()[-1].rows_written < 1000
