"""A rank of a job whose model is divided by torch: ``fully_shard``, tensor parallelism, or both."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Shard, distribute_tensor
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import holdfast as hf
from holdfast.checkpoint.track.table_watch import TableWatch
from holdfast.checkpoint.training.dtensors import box_of
from holdfast.format.boxes import Box
from tests.exchange import exchange_gradients
from tests.jobs.arrays import Arrays
from tests.jobs.rank import Rank
from tests.session.sharded.model import Model, batch, divided, optimizers_of


class ShardedRank(Rank):
    """A rank whose model is made of DTensors."""

    def build(self, how: str, optimizer: str = "adagrad", seed: int = 0, hidden: int = 8) -> None:
        """A new training, divided like this."""
        torch.manual_seed(seed)
        self.how = how
        model = divided(Model(hidden), how)
        self.begin(model, optimizers_of(model, optimizer))

    def guard_data(self, url: str, samples: int) -> None:
        """A Checkpointer over the training and its data, of which each rank reads its share."""
        numbers = TensorDataset(torch.arange(samples))
        sampler = DistributedSampler(numbers, num_replicas=self.world, rank=self.number)
        self.guard(url, loader=DataLoader(numbers, batch_size=2, sampler=sampler))

    def train_on_data(self, ends_at: int | None = None) -> list[int]:
        """Train on what is left of the data; the samples that were read. Rank 1 may hear that it has to end."""
        read: list[int] = []
        with suppress(hf.Terminated), self.checkpointer:
            for (samples,) in self.checkpointer.batches():
                read += samples.tolist()
                self.learn()
                if self.number == 1 and len(read) // 2 == ends_at:
                    self.checkpointer.terminate()
                self.checkpointer.step()
        return read

    def guard_odd(self, what: str, url: str) -> None:
        """A Checkpointer over a training with something that cannot be saved."""
        self.begin(*ODD[what](self.number))
        extra = {"average": self.model} if what == "extra" else None
        self.guard(url, extra=extra)

    def backward(self) -> None:
        (self.model(batch(self.checkpointer.steps)) - 1.0).square().sum().backward()
        if self.how == "plain":
            exchange_gradients(self.model)

    def held(self) -> Arrays:
        """Everything that the job has, put together by torch's own means: copies, by name."""
        found = {name: _whole(value) for name, value in self.model.state_dict().items()}
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                found |= {f"{names[id(parameter)]}.{key}": _whole(value) for key, value in state.items()}
        return found

    def evaluate(self) -> str:
        """A forward pass without a backward one; what FSDP then has in the place of a parameter."""
        with torch.no_grad():
            self.model(batch(0))
        return type(self.model.norm.weight).__name__

    def nudge(self, rank: int) -> None:
        """Change the dense part on one rank, past the DTensor."""
        if self.number == rank:
            with torch.no_grad():
                self.model.up.weight.to_local().add_(1.0)

    def edit(self, row: int) -> None:
        """Change a row of this rank's part of a table, past the DTensor."""
        local = self.model.users.weight.to_local()
        with torch.no_grad():
            if row < len(local):
                local[row] += 1.0

    def watch_badly(self) -> None:
        """From now on a row of each gradient is missed."""
        whole = TableWatch.see_gradient

        def see_gradient(watch: TableWatch, gradient: Tensor, *, changes: int) -> None:
            less = gradient.clone()
            if (rows := less.any(dim=1).nonzero()).numel():
                less[rows[0]] = 0.0
            whole(watch, less, changes=changes)
            if watch._seen is not None:
                watch._seen = (gradient, watch._versions_of(gradient), changes)

        TableWatch.see_gradient = see_gradient  # type: ignore[method-assign]

    def meddle(self, row: int) -> None:
        """From now on a hook gives a row a gradient when the step has begun."""

        def add(optimizer: Optimizer, *_: Any) -> None:
            with torch.no_grad():
                gradient = self.model.users.weight.grad
                spot = torch.zeros(gradient.shape)
                spot[row] = 1.0
                gradient.add_(distribute_tensor(spot, gradient.device_mesh, gradient.placements, src_data_rank=None))

        self.optimizers[1].register_step_pre_hook(add)

    def tables(self) -> list[tuple[str, int]]:
        """What this rank saves of each table: its name and a number of rows."""
        tables = self.checkpointer._parts.tracker._watches.values()
        shares = [(watch.table.name, watch.table.share(self.number, self.world)) for watch in tables]
        return [(name, stop - start) for name, (start, stop) in shares]

    def recover(self, servers: list[int], of: int) -> None:
        self.checkpointer.recover(servers, of=of)

    def restore(self, url: str) -> int:
        """Read a run into the model, without a Checkpointer."""
        return hf.open_run(url).restore(model=self.model, optimizer=self.optimizers).step

    def boxes(self, shape: tuple[int, ...], mesh: tuple[int, ...], placements: list[Placement]) -> tuple[Any, Any]:
        """A tensor of numbers, divided by torch: what this rank holds of it, and of it the box that we would say."""
        numbers = torch.arange(math.prod(shape)).reshape(shape)
        held = distribute_tensor(numbers, init_device_mesh("cpu", mesh), placements, src_data_rank=None)
        box = box_of(held, "it")
        return held.to_local().numpy(), numbers[box.within(Box.whole(shape))].numpy()


def _partial(number: int) -> tuple[nn.Module, list[Optimizer]]:
    model = nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model.weight = nn.Parameter(DTensor.from_local(torch.ones(4, 4), mesh, [Partial()], run_check=False))
    return model, []


def _mixed(number: int) -> tuple[nn.Module, list[Optimizer]]:
    model = nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.ones(2, 4, dtype=torch.float16 if number else torch.float32)
    model.weight = nn.Parameter(DTensor.from_local(rows, mesh, [Shard(0)], run_check=False))
    return model, []


def _uneven(number: int) -> tuple[nn.Module, list[Optimizer]]:
    model = nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows = torch.ones(3 - 2 * number, 4)
    whole = DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=torch.Size([4, 4]), stride=(4, 1))
    model.weight = nn.Parameter(whole)
    return model, []


def _hoard(number: int) -> tuple[nn.Module, list[Optimizer]]:
    model = fully_shard(nn.Linear(4, 4))
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["mine"] = torch.ones(2, 4)
    return model, [optimizer]


def _average(number: int) -> tuple[nn.Module, list[Optimizer]]:
    return fully_shard(nn.Linear(4, 4)), []


def _old_fsdp(number: int) -> tuple[nn.Module, list[Optimizer]]:
    return FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu")), []


ODD: dict[str, Callable[[int], tuple[nn.Module, list[Optimizer]]]] = {
    "partial": _partial,
    "mixed": _mixed,
    "uneven": _uneven,
    "plain state": _hoard,
    "extra": _average,
    "fsdp 1": _old_fsdp,
}


def _whole(value: Any) -> NDArray[Any]:
    whole = value.full_tensor() if isinstance(value, DTensor) else torch.as_tensor(value)
    return whole.detach().clone().numpy()


def play(text: str, url: str, number: int, world: int, port: int, out: str) -> None:
    """Be one rank of a program that is given as text."""
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    with open(out, "w", buffering=1) as printed:
        sys.stdout = sys.stderr = printed
        sys.argv = ["train.py", url]
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
