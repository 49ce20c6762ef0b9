"""A rank of the job that ``torchrec`` measures: row-wise tables with fused row-wise Adagrad, saved in two ways."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan, ShardingType

import holdfast as hf
from benchmarks.claims._savers import Alternate

SEED = 5
WARM_UP = 1  # rounds that are not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much to measure."""

    tables: int
    rows: int  # of each table
    dim: int
    rounds: int
    share: float  # of the rows that train between two saves


class Sharder(EmbeddingBagCollectionSharder):  # type: ignore[misc] # TorchRec is not there where types are checked
    """Allows row-wise sharding on a CPU too."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [ShardingType.ROW_WISE.value]


class Model(nn.Module):
    """Tables and one layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"t{number}", num_embeddings=size.rows, embedding_dim=size.dim, feature_names=[f"f{number}"]
                )
                for number in range(size.tables)
            ],
            device=torch.device("cpu"),
        )
        self.top = nn.Linear(size.tables * size.dim, 1)

    def forward(self, features: Any) -> Tensor:
        found: Tensor = self.top(self.bags(features).values())
        return found


def measure(rank: int, world: int, size: Size, folder: str) -> None:
    """Train, save in turns, and write what was measured, on rank 0."""
    torch.set_num_threads(1)
    timeout = timedelta(minutes=20)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{folder}/peers", rank=rank, world_size=world, timeout=timeout)
    model = sharded(size, world)
    found = Measurement(model, size, Path(folder)).run()
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def sharded(size: Size, world: int) -> Any:
    """The model, every table divided by rows."""
    torch.manual_seed(SEED)
    model = Model(size)
    sharder = Sharder(fused_params={"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 0.1, "eps": 1e-8})
    plan = construct_module_sharding_plan(
        model.bags,
        {f"t{number}": row_wise(compute_kernel="fused") for number in range(size.tables)},
        sharder=sharder,
        local_size=world,
        world_size=world,
        device_type="cpu",
    )
    assert {each.compute_kernel for each in plan.values()} == {"fused"}
    return DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan(plan={"bags": plan}), sharders=[sharder]
    )


class Measurement:
    """Rounds of a full save, a delta, and a staging of the same state by DCP."""

    def __init__(self, model: Any, size: Size, folder: Path) -> None:
        self._model = model
        self._size = size
        self._folder = folder
        self._optimizer = torch.optim.SGD(model.module.top.parameters(), lr=0.1)
        self._draw = torch.Generator().manual_seed(SEED + dist.get_rank())

    def run(self) -> dict[str, Any]:
        """Seconds of each way to save, the slowest rank's, and the sizes of saves."""
        stager = DefaultStager(
            StagingOptions(
                use_shared_memory=True, use_pinned_memory=False, use_async_staging=False, use_non_blocking_copy=False
            )
        )
        settings = hf.Settings(grace_s=0.0, handle_sigterm=False)
        url = self._folder / "run"
        waits: dict[str, list[float]] = {"full": [], "delta": [], "dcp_best": []}
        with hf.Checkpointer(
            url,
            model=self._model,
            optimizer=self._optimizer,
            save=hf.Never(),
            strategy=Alternate(),
            retention=hf.KeepLast(2),
            overlap=hf.Overlap.WAIT,
            settings=settings,
        ) as guard:
            guard.resume()
            for number in range(WARM_UP + self._size.rounds):
                turns = ["dcp_best", "full", "delta"] if number % 2 else ["full", "delta", "dcp_best"]
                for turn in turns:
                    self._train(guard)
                    waited_s = self._stage(stager) if turn == "dcp_best" else self._save(guard)
                    if number >= WARM_UP:
                        waits[turn].append(waited_s)
            sizes = {each.kind.value: each.size_bytes for each in hf.open_run(url).checkpoints()}
        return {"waits": waits, "sizes": sizes}

    def _train(self, guard: hf.Checkpointer) -> None:
        """A step that looks up the share of all rows, each once on one of the ranks."""
        count = round(self._size.share * self._size.rows / dist.get_world_size())
        ids = [torch.randperm(self._size.rows, generator=self._draw)[:count] for _ in range(self._size.tables)]
        features = KeyedJaggedTensor.from_lengths_sync(
            keys=[f"f{number}" for number in range(self._size.tables)],
            values=torch.cat(ids),
            lengths=torch.ones(self._size.tables * count, dtype=torch.int64),
        )
        self._optimizer.zero_grad()
        self._model(features).square().mean().backward()
        self._optimizer.step()
        guard.step()

    def _save(self, guard: hf.Checkpointer) -> float:
        def save() -> None:
            assert guard.save()

        waited_s = _slowest(save)
        guard.drain()  # nothing is written while others are measured
        return waited_s

    def _stage(self, stager: Any) -> float:
        fused = self._model.fused_optimizer.state_dict()["state"]
        state = _local({"model": self._model.state_dict(), "fused": fused})
        return _slowest(lambda: stager.stage(state))


def _local(state: Any) -> Any:
    """The same state with the tensors of this rank in place of ShardedTensors, which the stager cannot stage."""
    if isinstance(state, dict):
        return {key: _local(value) for key, value in state.items()}
    return [shard.tensor for shard in state.local_shards()] if hasattr(state, "local_shards") else state


def _slowest(act: Callable[[], object]) -> float:
    """How long the slowest rank took, where all begin together."""
    dist.barrier()
    started_s = time.perf_counter()
    act()
    took = torch.tensor([time.perf_counter() - started_s], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took)
