"""A small model with tables of every kind, and plans that divide them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
)
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_row_wise,
    table_wise,
)
from torchrec.distributed.types import (
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardingType,
    ShardMetadata,
)
from torchrec.modules.embedding_configs import DataType
from torchrec.optim import RowWiseAdagrad

DIM = 8
# b1 has fewer rows than 4 ranks fill; b6 is beside it, because FBGEMM looks nothing up in no rows at all on a CPU.
BAGS = {"b0": 37, "b1": 5, "b2": 30, "b3": 41, "b4": 26, "b5": 19, "b6": 31}
SEQUENCES = {"s0": 29, "s1": 33, "s2": 17}
BATCH = 8  # samples of all ranks together
IDS = 2  # rows that a sample looks up in each table
OPTIMIZERS = {
    "sgd": (EmbOptimType.EXACT_SGD, torch.optim.SGD),
    "adagrad": (EmbOptimType.EXACT_ADAGRAD, torch.optim.Adagrad),
    "rowwise": (EmbOptimType.EXACT_ROWWISE_ADAGRAD, RowWiseAdagrad),
}
LR = 0.25


class Model(nn.Module):
    """Pooled and single rows, and a dense layer over them."""

    def __init__(self, bags: Mapping[str, int] = BAGS, data_type: DataType = DataType.FP32) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=DIM,
                    num_embeddings=rows,
                    feature_names=[f"f_{name}"],
                    data_type=data_type,
                )
                for name, rows in bags.items()
            ],
            device=torch.device("cpu"),
        )
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=[f"f_{name}"])
                for name, rows in SEQUENCES.items()
            ],
            device=torch.device("cpu"),
        )
        self.top = nn.Linear(DIM * (len(BAGS) + len(SEQUENCES)), 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        return self.top(self.look_up(features)).squeeze(1)

    def look_up(self, features: KeyedJaggedTensor) -> Tensor:
        pooled = self.bags(features).values()
        single: Mapping[str, JaggedTensor] = self.sequences(features)
        means = [single[f"f_{name}"].values().view(-1, IDS, DIM).mean(1) for name in SEQUENCES]
        return torch.cat([pooled, *means], dim=1)


def batch(step: int, rank: int, world: int) -> tuple[KeyedJaggedTensor, Tensor]:
    """This rank's part of a batch: the same samples whatever the number of ranks."""
    draw = torch.Generator().manual_seed(1000 + step)
    tables = {**BAGS, **SEQUENCES}
    ids = torch.stack([torch.randint(rows, (BATCH, IDS), generator=draw) for rows in tables.values()])
    target = torch.rand(BATCH, generator=draw)
    low, high = BATCH * rank // world, BATCH * (rank + 1) // world
    own = ids[:, low:high]
    lengths = torch.full((len(tables) * (high - low),), IDS)
    keys = [f"f_{name}" for name in tables]
    return KeyedJaggedTensor.from_lengths_sync(keys=keys, values=own.reshape(-1), lengths=lengths), target[low:high]


@dataclass(frozen=True)
class Plan:
    """How each table is divided: a word per table."""

    bags: str  # such as "tw rw cw twrw grid dp"
    sequences: str
    world: int
    turn: int = 0  # places tables on other ranks

    def sharding(self, kind: str, number: int) -> Any:
        world, first = self.world, (number + self.turn) % self.world
        fused: dict[str, Any] = {"compute_kernel": "fused"}
        hosts = max(1, world // 2)
        match kind:
            case "tw":
                return table_wise(rank=first, **fused)
            case "rw":
                return row_wise(**fused)
            case "cw":
                return column_wise(ranks=[first, (first + 1) % world], **fused)
            case "twrw":
                return table_row_wise(host_index=(number + self.turn) % hosts)
            case "grid":
                return _grid
            case "dp":
                return data_parallel()
            case "dense_rw":
                return row_wise(compute_kernel="dense")
            case "dense_tw":
                return table_wise(rank=first, compute_kernel="dense")
        raise ValueError(kind)


def _grid(param: Tensor, local_size: int, world_size: int, device_type: str, sharder: Any) -> ParameterSharding:
    """Half of the columns on each of two hosts, half of the rows on each of their ranks: the library's needs 128."""
    (rows, columns), half = param.shape, -(-param.shape[0] // local_size)
    shards = [
        ShardMetadata(
            shard_offsets=[row * half, host * columns // 2],
            shard_sizes=[min(half, rows - row * half), columns // 2],
            placement=f"rank:{host * local_size + row}/cpu",
        )
        for host in range(2)
        for row in range(local_size)
    ]
    return ParameterSharding(
        sharding_type=ShardingType.GRID_SHARD.value,
        compute_kernel="fused",
        ranks=list(range(2 * local_size)),
        sharding_spec=EnumerableShardingSpec(shards),
    )


class BagSharder(EmbeddingBagCollectionSharder):
    """Allows everything that the plan asks for: the library's refuses row-wise on a CPU."""

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [each.value for each in ShardingType]


class SequenceSharder(EmbeddingCollectionSharder):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [each.value for each in ShardingType]


def shard(model: Model, plan: Plan, optimizer: str) -> DistributedModelParallel:
    """The model, divided like this."""
    fused = {"optimizer": OPTIMIZERS[optimizer][0], "learning_rate": LR, "eps": 1e-6}
    sharders = [BagSharder(fused_params=dict(fused)), SequenceSharder(fused_params=dict(fused))]
    plans = {}
    bags = [config.name for config in model.bags.embedding_bag_configs()]
    for path, names, words, sharder in (
        ("bags", bags, plan.bags, sharders[0]),
        ("sequences", list(SEQUENCES), plan.sequences, sharders[1]),
    ):
        kinds = dict(zip(names, words.split(), strict=True))
        plans[path] = construct_module_sharding_plan(
            getattr(model, path),
            {name: plan.sharding(kind, number) for number, (name, kind) in enumerate(kinds.items())},
            sharder=sharder,
            local_size=min(2, plan.world),
            world_size=plan.world,
            device_type="cpu",
        )
        for name, kind in kinds.items():
            if kind == "twrw":  # which takes no kernel, and silently chooses the dense one
                plans[path][name].compute_kernel = "fused"
            expected = "dense" if kind.startswith(("dp", "dense")) else "fused"
            assert plans[path][name].compute_kernel == expected, name
    return DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan(plan=plans), sharders=sharders, init_data_parallel=True
    )
