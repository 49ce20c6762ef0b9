"""A model whose rows are given to raw ids by TorchRec's managed collision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
from torchrec.distributed.mc_modules import ManagedCollisionCollectionSharder
from torchrec.distributed.types import ShardingType
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    LRU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHEvictionPolicy,
    MCHManagedCollisionModule,
)

CPU, DIM = torch.device("cpu"), 4
SIZES = {"user": 12, "item": 9}


def mch(policy: Callable[[], MCHEvictionPolicy], size: int) -> nn.Module:
    return MCHManagedCollisionModule(zch_size=size, device=CPU, eviction_policy=policy(), eviction_interval=2)


class Model(nn.Module):
    """Two managed tables and a layer."""

    def __init__(self, make: Callable[[int], nn.Module], *, pooled: bool = True, grow: int = 0) -> None:
        super().__init__()
        torch.manual_seed(3)
        kind, collection, around = (
            (EmbeddingBagConfig, EmbeddingBagCollection, ManagedCollisionEmbeddingBagCollection)
            if pooled
            else (EmbeddingConfig, EmbeddingCollection, ManagedCollisionEmbeddingCollection)
        )
        sizes = {name: rows + grow for name, rows in SIZES.items()}
        configs = [
            kind(name=name, embedding_dim=DIM, num_embeddings=rows, feature_names=[name])
            for name, rows in sizes.items()
        ]
        collisions = {name: make(rows) for name, rows in sizes.items()}
        self.managed = around(collection(tables=configs, device=CPU), ManagedCollisionCollection(collisions, configs))
        self.top = nn.Linear(DIM, 1)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        found, _ = self.managed(features)
        pieces = [each.values() for each in found.values()] if isinstance(found, dict) else [found.values()]
        return self.top(torch.cat([piece.view(-1, DIM) for piece in pieces])).sum()


class _Bags(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [ShardingType.ROW_WISE.value]


def managed_model() -> Model:
    """With the least recently used ids evicted."""
    return Model(lambda size: mch(LRU_EvictionPolicy, size))


def managed_sharder() -> Any:
    """Shards it by rows."""
    return ManagedCollisionEmbeddingBagCollectionSharder(_Bags(), ManagedCollisionCollectionSharder())
