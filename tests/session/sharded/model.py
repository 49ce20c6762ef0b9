"""A small model with tables, and the ways in which it is divided over ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import SGD, Adagrad, Adam, Optimizer

USERS, ITEMS, DIM = 23, 10, 6  # rows that two and four ranks cannot share evenly

TABLE_OPTIMIZERS = {"sgd": SGD, "adagrad": Adagrad, "adam": Adam}


class Model(nn.Module):
    """Two tables and a perceptron; its norm is smaller than a job of four ranks."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.items = nn.Embedding(ITEMS, DIM)
        self.up = nn.Linear(DIM, hidden)
        self.down = nn.Linear(hidden, 3)
        self.norm = nn.LayerNorm(3)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, ids: Tensor) -> Tensor:
        looked_up = self.users(ids % USERS) + self.items(ids % ITEMS)
        found: Tensor = self.norm(self.down(torch.relu(self.up(looked_up))))
        return found


def divided(model: Model, how: str) -> Model:
    """The model, divided over all ranks; ``plain``: by nobody."""
    world = dist.get_world_size()
    match how.split("+"):
        case ["fsdp"]:
            fully_shard(model.up)
            fully_shard(model)
        case ["hsdp"]:
            fully_shard(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "shards")))
        case ["tp"]:
            _in_parallel(model, init_device_mesh("cpu", (world,)), by_rows=True)
        case ["columns"]:
            _in_parallel(model, init_device_mesh("cpu", (world,)), by_rows=False)
        case ["fsdp", kind]:
            mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
            _in_parallel(model, mesh["tp"], by_rows=kind == "tp")
            fully_shard(model, mesh=mesh["dp"])
    return model


def _in_parallel(model: Model, mesh: object, *, by_rows: bool) -> None:
    """The tables by rows or by columns, the first layer by columns and the second by rows."""
    rows = RowwiseParallel(input_layouts=Replicate())
    table = rows if by_rows else ColwiseParallel(output_layouts=Replicate())
    plan = {"users": table, "items": rows, "up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)  # type: ignore[arg-type]
    model.seen = distribute_tensor(model.seen, mesh, [Replicate()])  # type: ignore[arg-type]


def optimizers_of(model: Model, kind: str) -> list[Optimizer]:
    """Adam for the dense part, and one for the tables."""
    tables = [*model.users.parameters(), *model.items.parameters()]
    held = {id(table) for table in tables}
    dense = [each for each in model.parameters() if id(each) not in held]
    return [Adam(dense, lr=0.05), TABLE_OPTIMIZERS[kind](tables, lr=0.1)]


def batch(step: int) -> Tensor:
    """The same on every rank, so that tensor parallelism, which wants that, and the others train alike."""
    return torch.randint(1000, (3,), generator=torch.Generator().manual_seed(step))
