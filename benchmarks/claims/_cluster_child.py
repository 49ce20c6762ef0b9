"""The training of the cluster's benchmarks without the cluster: ``python -m benchmarks.claims._cluster_child KIND``.

Its parent names the plan; results go where a worker's would.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from benchmarks.claims._cluster_clock import Clock
from benchmarks.claims._cluster_job import Batches, JobPlan, build_model, compute, train_loop
from benchmarks.claims._cluster_runs import ALL_TABLES, LR
from holdfast.cluster.placement import Placement
from holdfast.cluster.train.build import BuiltModel, build
from holdfast.cluster.train.exchange import Exchange
from holdfast.cluster.train.local_exchange import LocalExchange
from holdfast.cluster.train.loop import TrainingLoop
from holdfast.cluster.train.settings import LoopSettings
from holdfast.policy import Adagrad


def with_torch(plan: JobPlan) -> None:
    """Tables in the model, sparse gradients, optimizers of torch."""
    model = build_model(on_servers=False)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LR)
    clock = Clock(Path(plan.folder), 0, warm_up=plan.warm_up, batch_size=plan.batch_size)
    for steps, batch in enumerate(Batches(plan), 1):
        optimizer.zero_grad(set_to_none=True)
        compute(model, batch)
        optimizer.step()
        if plan.device == "cuda":
            torch.cuda.synchronize()  # as a worker's step ends with gradients on the host
        clock.tick(steps)
    clock.write({})


def with_exchange(plan: JobPlan, servers: int) -> None:
    """A worker's loop, with all servers in its process."""
    built = build(build_model, ALL_TABLES)
    placement = Placement(built.plan, servers)
    optimizer = Adagrad(LR)
    exchange = LocalExchange(placement, optimizer=optimizer, dense_optimizer=optimizer, dense=built.dense_values())
    train_loop(training_loop(built, placement, exchange), plan, Batches(plan))


def training_loop(built: BuiltModel, placement: Placement, exchange: Exchange) -> TrainingLoop:
    """As a worker's."""
    return TrainingLoop(built, placement, exchange, LoopSettings(lr_tables=LR, lr_dense=LR))


def with_ray(plan: JobPlan, servers: int) -> None:
    """A worker's loop, with servers that are actors of Ray."""
    from benchmarks.claims._cluster_ray import ray_exchange

    built = build(build_model, ALL_TABLES)
    placement = Placement(built.plan, servers)
    with ray_exchange(placement, Adagrad(LR), built.dense_values()) as exchange:
        train_loop(training_loop(built, placement, exchange), plan, Batches(plan))


def main(kind: str, servers: int) -> None:
    plan = JobPlan.read()
    torch.set_num_threads(plan.threads)
    torch.sparse.check_sparse_tensor_invariants.disable()  # else a warning from torch's own steps
    match kind:
        case "torch":
            with_torch(plan)
        case "exchange":
            with_exchange(plan, servers)
        case "ray":
            with_ray(plan, servers)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
