"""The claim on optimizers at a scale that proves nothing but that it measures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.claims import optimizers
from holdfast.kernels import optimize


def test_every_optimizer_is_measured_and_those_of_torch_are_compared() -> None:
    threads = torch.get_num_threads()
    figures = optimizers.run("tiny").figures
    for name in optimizers.OPTIMIZERS:
        for kind in ("", "repeated_"):
            assert float(figures[f"{name}_{kind}rows_per_s"]) > 0
    compared = {name for name in optimizers.OPTIMIZERS if f"{name}_over_torch_speedup" in figures}
    assert compared == {"sgd", "adagrad", "adam"}
    assert float(figures["optimizer_call_us"]) > 0
    assert torch.get_num_threads() == threads


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own tensors
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_what_is_compared_is_the_same_update(name: str) -> None:
    rule, weights = optimizers.OPTIMIZERS[name].rule(), np.ones((4, 8), np.float32)
    ids, gradients = np.array([1, 3]), np.arange(16, dtype=np.float32).reshape(2, 8)
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    optimizers.torch_step(name, parameter, [ids], gradients)(0)
    optimize.apply(rule, ids, gradients, weights, optimize.new_slots(rule, 4, 8), lr=optimizers.LR)
    assert parameter.detach().numpy() == pytest.approx(weights, rel=1e-6)
