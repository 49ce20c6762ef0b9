"""The optimizer of a worker, as schedulers and scalers see it."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn

from holdfast.cluster.train.optimizer import WorkerOptimizer

PROGRAM = """
import sys
from torch import nn
from holdfast.cluster.train.optimizer import WorkerOptimizer
WorkerOptimizer([nn.Linear(1, 1).weight], [], lr_tables=1.0, lr_dense=1.0, push=print)
sys.exit("torch._dynamo" in sys.modules)
"""


def test_both_groups_are_there_and_a_schedule_moves_their_rates() -> None:
    rates: list[tuple[float, float]] = []
    tables, dense = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    optimizer = WorkerOptimizer([tables], [dense], lr_tables=1.0, lr_dense=2.0, push=lambda *both: rates.append(both))
    assert [each["params"] for each in optimizer.param_groups] == [[tables], [dense]]
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    optimizer.step()
    assert rates == [(0.5, 1.0)]


def test_a_worker_starts_without_the_compiler_of_torch() -> None:
    assert subprocess.run([sys.executable, "-c", PROGRAM], check=False).returncode == 0
