"""Finds the modules of a model in which TorchRec divided tables, and refuses those that are not supported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel, DMPCollection
from torchrec.distributed.types import ShardedModule

from holdfast.checkpoint.training.tables import join_names, stable_modules
from holdfast.errors import ConfigurationError

_KERNELS = ("fused", "dense")
_COLLECTIONS = {ShardedEmbeddingBagCollection: "embedding_bags", ShardedEmbeddingCollection: "embeddings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The tables that one operator looks up, in its order, and the operator."""

    configs: tuple[Any, ...]  # TorchRec's descriptions of the shards
    operator: Any  # FBGEMM's "TBE"
    holder: Any  # TorchRec's module around it


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A sharded collection of tables, and how tables in it are called in a model that is not sharded."""

    module: Any
    path: str  # of what holds the tables, in the names of an unsharded model

    def name(self, table: str) -> str:
        """What a table is called."""
        return join_names(self.path, table)

    @property
    def plan(self) -> Mapping[str, Any]:
        """How each table is divided."""
        found: Mapping[str, Any] = self.module.module_sharding_plan
        return found

    def config(self, table: str) -> Any:
        """The table's rows and values, and more."""
        configs = getattr(self.module, "_embedding_bag_configs", None) or self.module._embedding_configs
        return next(config for config in configs if config.name == table)

    def parameter(self, table: str) -> nn.Parameter:
        """What the model has as a table's weight."""
        inside = getattr(self.module, self.path.rpartition(".")[2])
        found = inside[table].weight
        assert isinstance(found, nn.Parameter)
        return found

    def kernels(self) -> Iterator[Kernel]:
        """Its operators on this rank. No walk over modules finds them: they are in plain lists."""
        for holder in self.holders():
            yield Kernel(configs=tuple(holder.config.embedding_tables), operator=holder.emb_module, holder=holder)

    def holders(self) -> Iterator[Any]:
        """TorchRec's modules around them."""
        for lookup in self.module._lookups:
            inner = lookup.module if isinstance(lookup, DistributedDataParallel) else lookup
            yield from inner._emb_modules


def find_collections(models: Mapping[str, nn.Module]) -> list[Collection]:
    """Every sharded collection in the models; raises ConfigurationError for what is sharded in another way."""
    found = []
    for key, model in models.items():
        for path, module in stable_modules(model):
            if isinstance(module, DMPCollection):
                raise ConfigurationError(
                    f"{_called(key, path)} is a DMPCollection (2D parallelism), whose tables exist several times. Use "
                    "DistributedModelParallel over all ranks"
                )
            inside = _COLLECTIONS.get(type(module))
            if inside is not None:
                found.append(Collection(module=module, path=join_names(key, path, inside)))
            elif isinstance(module, ShardedModule) and not isinstance(module, DistributedModelParallel):
                raise ConfigurationError(
                    f"{_called(key, path)} is a {type(module).__name__}, which is not supported. Supported are sharded "
                    "EmbeddingBagCollection and EmbeddingCollection; leave this module out of the sharding plan"
                )
    for collection in found:
        for table, sharding in collection.plan.items():
            _require_kernel(collection.name(table), sharding)
    return found


def _require_kernel(table: str, sharding: Any) -> None:
    if sharding.compute_kernel not in _KERNELS:
        raise ConfigurationError(
            f"table {table!r} ({sharding.sharding_type}) uses the compute kernel {sharding.compute_kernel!r}, whose "
            "rows are not in the device's memory (UVM, SSD or a key-value store). This is not supported: constrain the "
            "table to the kernel 'fused' or 'dense', with ParameterConstraints(compute_kernels=['fused'])"
        )


def _called(key: str, path: str) -> str:
    name = join_names(key, path)
    return f"module {name!r}" if name else "the model"
