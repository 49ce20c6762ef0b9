"""A rank of a job whose model is divided by TorchRec."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torchrec import KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import DataType

import holdfast as hf
from holdfast.checkpoint.training.divided import SeeRows
from holdfast.integrations.torchrec.collection import find_collections
from holdfast.integrations.torchrec.lookups import LookupWatch
from holdfast.storage import MemoryStore
from tests.integrations.torchrec.managed import SIZES as MANAGED
from tests.integrations.torchrec.managed import managed_model, managed_sharder
from tests.integrations.torchrec.model import BAGS, LR, OPTIMIZERS, SEQUENCES, Model, Plan, batch, shard
from tests.jobs.arrays import Arrays
from tests.jobs.memory import peak_above_before
from tests.jobs.rank import Rank


class TorchRecRank(Rank):
    """A rank whose tables TorchRec divides."""

    def __init__(self, number: int, world: int, folder: str) -> None:
        os.environ.update(LOCAL_WORLD_SIZE=str(min(2, world)), RANK=str(number), WORLD_SIZE=str(world))
        super().__init__(number, world, folder)

    def build(
        self,
        plan: Plan,
        optimizer: str,
        seed: int = 0,
        *,
        bags: dict[str, int] = BAGS,
        half: tuple[int, ...] = (),
    ) -> None:
        """A new training, with tables of half precision on some ranks."""
        torch.manual_seed(seed)
        data_type = DataType.FP16 if self.number in half else DataType.FP32
        model = shard(Model(bags, data_type), plan, optimizer)
        data_parallel = [p for n, p in model.named_parameters() if _is_dense_table(n, plan)]
        optimizers: list[Optimizer] = [torch.optim.Adam(model.module.top.parameters(), lr=0.01)]
        if data_parallel:
            optimizers.append(OPTIMIZERS[optimizer][1](data_parallel, lr=LR))
        self.begin(model, optimizers)

    def backward(self) -> None:
        features, target = batch(self.checkpointer.steps, self.number, self.world)
        (self.model(features) - target).square().sum().backward()

    def train_pipelined(self, steps: int, save_every: int) -> int:
        """The rows of the next batch are looked up before those of this one are updated."""
        model: Model = self.model.module
        ahead = model.look_up(self._features(0))
        for _ in range(steps):
            target = batch(self.checkpointer.steps, self.number, self.world)[1]
            looked_up, ahead = ahead, model.look_up(self._features(1))
            self.optimizers[0].zero_grad()
            (model.top(looked_up).squeeze(1) - target).square().sum().backward()
            for parameter in model.top.parameters():
                dist.all_reduce(parameter.grad)
            self.optimizers[0].step()
            self.step(save_every)
        return self.checkpointer.steps

    def _features(self, ahead: int) -> KeyedJaggedTensor:
        return batch(self.checkpointer.steps + ahead, self.number, self.world)[0]

    def evaluate(self, step: int) -> None:
        """Lookups that are followed by no backward pass."""
        with torch.no_grad():
            self.model(batch(step, self.number, self.world)[0])
        self.model(batch(step, self.number, self.world)[0])

    def watch_badly(self) -> None:
        """From now on one row of each lookup is missed."""
        whole = LookupWatch._goes_back

        def goes_back(watch: LookupWatch, see: SeeRows, lookup: dict[str, Any], gradient: torch.Tensor) -> None:
            whole(watch, lambda name, ids: see(name, ids[1:]), lookup, gradient)

        LookupWatch._goes_back = goes_back  # type: ignore[method-assign]

    def held(self) -> Arrays:
        """Everything that this rank has, from TorchRec's own books: copies, by name and place."""
        found: Arrays = {}
        for name, value in self.model.state_dict().items():
            for place, tensor in _shards(value):
                found[f"{name}@{place}"] = tensor.detach().clone().numpy()
        for name, state in self.model.fused_optimizer.state_dict()["state"].items():
            for key, value in state.items():
                weight = self.model.state_dict()[name]
                places = [place for place, _ in _shards(weight)]
                for place, (_, tensor) in zip(places, _shards(value), strict=True):
                    found[f"{name}.{key.rpartition('.')[2]}@{place}"] = tensor.detach().clone().numpy()
        for optimizer in self.optimizers[1:]:
            weights, names = self.model.state_dict(), {id(p): n for n, p in self.model.named_parameters()}
            for parameter, state in optimizer.state.items():
                name = names[id(parameter)]
                for place, _ in _shards(weights[name]) if "sum" in state else ():
                    found[f"{name}.momentum1@{place}"] = state["sum"].clone().numpy()
        return found

    def resume_counting(self) -> tuple[int, int, int]:
        """Resume into memory that is all in use: the step, the most memory beyond that, and what the tables have."""
        kernels = [kernel for each in find_collections({"": self.model}) for kernel in each.kernels()]
        tables = [tensor for kernel in kernels for tensor in kernel.operator.split_embedding_weights()]
        slots = [slot for kernel in kernels for kept in kernel.operator.split_optimizer_states() for slot in kept]
        for tensor in (*tables, *slots):
            tensor.zero_()
        step, extra_bytes = peak_above_before(self.checkpointer.resume)
        return step, extra_bytes, sum(tensor.nbytes for tensor in (*tables, *slots))

    def totals(self) -> dict[str, int]:
        """The bits of all values that this rank holds of each table and slot, added up: in whatever order they are."""
        found: dict[str, int] = {}
        for name, array in self.held().items():
            whole = name.partition("@")[0]
            found[whole] = found.get(whole, 0) + int(array.view(np.uint32).sum(dtype=np.uint64))
        return found

    def recover(self, servers: list[int], of: int) -> int:
        """Lose what these servers hold, and bring it back; how many rows that were here."""
        self.checkpointer.emulate_failure(servers, of=of)
        return self.checkpointer.recover(servers, of=of).rows

    def restore(self, url: str, *, optimizers: bool = True, step: int | None = None) -> int:
        """Read a checkpoint without a Checkpointer."""
        return hf.open_run(url).restore(step, model=self.model, optimizer=self.optimizers if optimizers else ()).step

    def shard_again(self) -> None:
        """What TorchRec does to its lookups when a module is sharded anew."""
        self.model.module.bags._lookups.clear()

    def guard_with_everything(self, url: str) -> None:
        """An optimizer that also holds what is fused."""
        self.optimizers = [torch.optim.Adam(list(self.model.parameters()), lr=0.01)]
        self.guard(url)

    def guard_managed(self) -> None:
        """A model whose managed collision is sharded."""
        model, sharder = managed_model(), managed_sharder()
        tables = {name: row_wise(compute_kernel="fused") for name in MANAGED}
        world: dict[str, Any] = {"local_size": self.world, "world_size": self.world, "device_type": "cpu"}
        plan = construct_module_sharding_plan(model.managed, tables, sharder=sharder, **world)
        dmp = DistributedModelParallel(
            model, device=torch.device("cpu"), plan=ShardingPlan(plan={"managed": plan}), sharders=[sharder]
        )
        hf.Checkpointer(MemoryStore(), model=dmp)

    def learning_rates(self, rate: float | None = None) -> list[float]:
        """Those of the fused optimizers, after they are set, as a scheduler would."""
        for group in self.model.fused_optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else rate
        if rate is not None:
            self.model.fused_optimizer.step()
        kernels = [kernel for each in find_collections({"": self.model}) for kernel in each.kernels()]
        return [k.operator.get_learning_rate() for k in kernels if hasattr(k.operator, "get_learning_rate")]

    def warnings_of(self, what: str, **arguments: Any) -> list[str]:
        """What a call logs."""
        told: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("holdfast").addHandler(handler)
        try:
            getattr(self, what)(**arguments)
        finally:
            logging.getLogger("holdfast").removeHandler(handler)
        return told


def _is_dense_table(name: str, plan: Plan) -> bool:
    kinds = dict(zip([*BAGS, *SEQUENCES], [*plan.bags.split(), *plan.sequences.split()], strict=False))
    table = name.split(".")[-2]
    return kinds.get(table, "").startswith(("dp", "dense"))


def _shards(value: Any) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    if hasattr(value, "local_shards"):
        return [(tuple(each.metadata.shard_offsets), each.tensor) for each in value.local_shards()]
    return [((0, 0), value)]
