"""The same loop with its tables on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast as hf
from holdfast.codec.choice import weight_codec
from holdfast.codec.quantized import Quantized
from holdfast.kernels.quantize import tensors
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


@pytest.mark.parametrize("priority", [hf.SCAR(r=0.25), hf.MFU(r=0.25), hf.SSU(r=0.25)], ids=repr)
def test_rows_are_chosen_on_the_gpu_and_a_lost_part_comes_back_to_it(tmp_path: Path, priority: Any) -> None:
    model, optimizers = build()
    run = hf.open_run(tmp_path / "run")
    strategy = hf.Partial(priority=priority, consistent=hf.Consecutive())
    settings = {"save": hf.EverySteps(8), "strategy": strategy, "overlap": hf.Overlap.WAIT}
    with hf.Checkpointer(tmp_path / "run", model=model, optimizer=optimizers, **settings) as guard:
        guard.resume()
        for step in range(13):
            guard.step(loss=train_step(model, optimizers, step))
            guard.drain()
        saves = run.priority_saves()
        assert [info.step for info in saves] == [10, 12] and 0 < saves[-1].rows_written < 200
        before = [table.weight.detach().clone() for table in model.emb]
        view = [run.read_newest_rows(f"emb.{number}", range(len(each)))["weight"] for number, each in enumerate(before)]
        guard.emulate_failure([1], of=4)
        assert any(table.weight.isnan().any() for table in model.emb)
        guard.recover([1], of=4)
        for table, live, saved in zip(model.emb, before, view, strict=True):
            lost = slice(len(live) // 4, len(live) // 2)
            expected = live.clone()
            expected[lost] = saved[lost].cuda()
            assert torch.equal(table.weight, expected)
        guard.save(wait=True)
    state = snapshot(model, optimizers)
    model, optimizers = build(99)
    run.restore(model=model, optimizer=optimizers)
    assert same(snapshot(model, optimizers), state)


@pytest.mark.parametrize(
    "precision", [hf.Bits(2), hf.Bits(4, method="published"), hf.Bits(8), hf.Bits(2, difference=True)], ids=repr
)
def test_rows_encoded_on_the_gpu_are_stored_as_if_the_agent_had_encoded_them(tmp_path: Path, precision: Any) -> None:
    codec = weight_codec(2)
    assert isinstance(codec, Quantized) and tensors.is_cheap(torch.empty(3, 8, device="cuda"), codec.scheme)
    for name, cheap in (("there", tensors.is_cheap), ("here", lambda table, scheme: False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tensors, "is_cheap", cheap)
            model, optimizers = build()
            model.emb[1].weight.data[7, 0] = torch.inf  # no record holds it
            settings = {"save": hf.EverySteps(3), "strategy": hf.Consecutive(), "overlap": hf.Overlap.WAIT}
            with hf.Checkpointer(
                tmp_path / name, model=model, optimizer=optimizers, precision=precision, **settings
            ) as guard:
                for step in range(9):
                    guard.step(loss=train_step(model, optimizers, step))
    runs = [hf.open_run(tmp_path / name) for name in ("there", "here")]
    assert [info.step for info in runs[0].checkpoints()] == [info.step for info in runs[1].checkpoints()]
    for info in runs[0].checkpoints():
        for number, rows in enumerate((100_000, 40)):
            there, here = (run.read_rows(f"emb.{number}", range(rows), step=info.step) for run in runs)
            assert there.keys() == here.keys()
            assert all(torch.equal(there[c].view(torch.int32), here[c].view(torch.int32)) for c in here)
    assert not runs[0].verify()
