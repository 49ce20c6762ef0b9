"""One rank of a job in a process of its own: does what it is told, and answers."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import pickle
import signal
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from numpy.typing import NDArray
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
from holdfast.storage import MemoryStore, open_store
from tests.integrations.torchrec.managed import SIZES as MANAGED
from tests.integrations.torchrec.managed import managed_model, managed_sharder
from tests.integrations.torchrec.model import BAGS, LR, OPTIMIZERS, SEQUENCES, Model, Plan, batch, shard

Arrays = dict[str, NDArray[Any]]
SETTINGS = hf.Settings(buffer_bytes=2**20, frame_bytes=2**16, reserve_bytes=0, ranks_s=60.0, lease_s=5.0)


class Rank:
    """A rank, and the training that it is in."""

    def __init__(self, number: int, world: int, folder: str) -> None:
        self.number, self.world = number, world
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=number, world_size=world, timeout=timedelta(seconds=60)
        )
        self.shadows: dict[int, Arrays] = {}

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
        self.dmp = shard(Model(bags, data_type), plan, optimizer)
        data_parallel = [p for n, p in self.dmp.named_parameters() if _is_dense_table(n, plan)]
        self.optimizers: list[Optimizer] = [torch.optim.Adam(self.dmp.module.top.parameters(), lr=0.01)]
        if data_parallel:
            self.optimizers.append(OPTIMIZERS[optimizer][1](data_parallel, lr=LR))
        self.shadows = {}

    def guard(self, url: str, *, agent: bool = False, **options: Any) -> None:
        """A Checkpointer over it, whose agent is a thread unless a process is asked for."""
        options = {"save": hf.Never(), "overlap": hf.Overlap.WAIT, "settings": SETTINGS, **options}
        self.url = url
        where = url if agent else open_store(url)
        self.checkpointer = hf.Checkpointer(where, model=self.dmp, optimizer=self.optimizers, **options)
        self.others: list[hf.Checkpointer] = []

    def guard_also(self, url: str, **options: Any) -> None:
        """One more Checkpointer over the same training, which saves at the same steps."""
        first, others = self.checkpointer, self.others
        self.guard(url, **options)
        assert self.checkpointer.resume() == 0
        self.checkpointer, self.others = first, [*others, self.checkpointer]

    def resume(self, **options: Any) -> int:
        return self.checkpointer.resume(**options)

    def train(self, steps: int, save_every: int = 0) -> int:
        """Train, and save at some of the steps; keeps shadows of what was saved."""
        for _ in range(steps):
            features, target = batch(self.checkpointer.steps, self.number, self.world)
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = (self.dmp(features) - target).square().sum()
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
            self.step(save_every)
        return self.checkpointer.steps

    def step(self, save_every: int) -> None:
        """The optimizers have stepped."""
        guards = [self.checkpointer, *self.others]
        for guard in guards:
            guard.step()
        if save_every and self.checkpointer.steps % save_every == 0:
            self.shadows[self.checkpointer.steps] = self.held()
            with open(f"{self.url}-{self.checkpointer.steps}-{self.number}", "wb") as file:  # outlives this process
                pickle.dump(self.shadows[self.checkpointer.steps], file)
            assert all([guard.save(wait=True) for guard in guards])

    def train_pipelined(self, steps: int, save_every: int) -> int:
        """The rows of the next batch are looked up before those of this one are updated."""
        model: Model = self.dmp.module
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
            self.dmp(batch(step, self.number, self.world)[0])
        self.dmp(batch(step, self.number, self.world)[0])

    def watch_badly(self) -> None:
        """From now on one row of each lookup is missed."""
        whole = LookupWatch._goes_back

        def goes_back(watch: LookupWatch, see: SeeRows, lookup: dict[str, Any], gradient: torch.Tensor) -> None:
            whole(watch, lambda name, ids: see(name, ids[1:]), lookup, gradient)

        LookupWatch._goes_back = goes_back  # type: ignore[method-assign]

    def die_in(self, where: str) -> None:
        """Be killed where a save reaches this point."""
        kind, _, method = where.rpartition(".")
        owner = getattr(importlib.import_module(kind.rpartition(".")[0]), kind.rpartition(".")[2])
        setattr(owner, method, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))

    def saved_rows(self) -> int:
        """How many rows a save writes now; told to rank 0."""
        assert self.checkpointer.save(wait=True)
        return hf.open_run(self.url).checkpoints()[-1].rows_written

    def shadow(self, step: int) -> Arrays:
        return self.shadows[step]

    def held(self) -> Arrays:
        """Everything that this rank has, from TorchRec's own books: copies, by name and place."""
        found: Arrays = {}
        for name, value in self.dmp.state_dict().items():
            for place, tensor in _shards(value):
                found[f"{name}@{place}"] = tensor.detach().clone().numpy()
        for name, state in self.dmp.fused_optimizer.state_dict()["state"].items():
            for key, value in state.items():
                weight = self.dmp.state_dict()[name]
                places = [place for place, _ in _shards(weight)]
                for place, (_, tensor) in zip(places, _shards(value), strict=True):
                    found[f"{name}.{key.rpartition('.')[2]}@{place}"] = tensor.detach().clone().numpy()
        for optimizer in self.optimizers[1:]:
            weights, names = self.dmp.state_dict(), {id(p): n for n, p in self.dmp.named_parameters()}
            for parameter, state in optimizer.state.items():
                name = names[id(parameter)]
                for place, _ in _shards(weights[name]) if "sum" in state else ():
                    found[f"{name}.momentum1@{place}"] = state["sum"].clone().numpy()
        return found

    def recover(self, servers: list[int], of: int) -> int:
        """Lose what these servers hold, and bring it back; how many rows that were here."""
        self.checkpointer.emulate_failure(servers, of=of)
        return self.checkpointer.recover(servers, of=of).rows

    def restore(self, url: str, *, optimizers: bool = True, step: int | None = None) -> int:
        """Read a checkpoint without a Checkpointer."""
        return hf.open_run(url).restore(step, model=self.dmp, optimizer=self.optimizers if optimizers else ()).step

    def shard_again(self) -> None:
        """What TorchRec does to its lookups when a module is sharded anew."""
        self.dmp.module.bags._lookups.clear()

    def guard_with_everything(self, url: str) -> None:
        """An optimizer that also holds what is fused."""
        self.optimizers = [torch.optim.Adam(list(self.dmp.parameters()), lr=0.01)]
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
        for group in self.dmp.fused_optimizer.param_groups:
            group["lr"] = group["lr"] if rate is None else rate
        if rate is not None:
            self.dmp.fused_optimizer.step()
        kernels = [kernel for each in find_collections({"": self.dmp}) for kernel in each.kernels()]
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

    def close(self) -> None:
        self.checkpointer.close()


def _is_dense_table(name: str, plan: Plan) -> bool:
    kinds = dict(zip([*BAGS, *SEQUENCES], [*plan.bags.split(), *plan.sequences.split()], strict=False))
    table = name.split(".")[-2]
    return kinds.get(table, "").startswith(("dp", "dense"))


def _shards(value: Any) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    if hasattr(value, "local_shards"):
        return [(tuple(each.metadata.shard_offsets), each.tensor) for each in value.local_shards()]
    return [((0, 0), value)]


def serve(number: int, world: int, folder: str, pipe: Connection) -> None:
    """Do what comes through the pipe until it is closed."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    os.environ.update(LOCAL_WORLD_SIZE=str(min(2, world)), RANK=str(number), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    rank = Rank(number, world, folder)
    pipe.send(("ready", None))
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("done", getattr(rank, name)(**arguments)))
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
