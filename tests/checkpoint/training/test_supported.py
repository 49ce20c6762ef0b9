from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

import holdfast as hf
from holdfast.errors import ConfigurationError
from holdfast.storage import MemoryStore


class DistributedModelParallel(nn.Module):
    """Stands for TorchRec's, which is told by the name of its module."""

    __module__ = "torchrec.distributed.model_parallel"

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module


class ShardedTensor(Tensor):
    """Stands for torch's."""


def sharded() -> nn.Parameter:
    return nn.Parameter(torch.zeros(4, 2).as_subclass(ShardedTensor))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.ModuleDict({"arch": DistributedModelParallel(nn.Embedding(4, 2))}), r"module 'arch' .*TorchRec's"),
        (nn.ParameterDict({"rows": sharded()}), r"parameter 'rows' is a ShardedTensor"),
    ],
    ids=["TorchRec", "ShardedTensor"],
)
def test_a_model_that_is_spread_over_ranks_is_refused_by_name_with_what_to_do(model: nn.Module, words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{words}.*DistributedDataParallel.*torch.distributed.checkpoint"):
        hf.Checkpointer(MemoryStore(), model=model)


def test_so_is_an_optimizer_that_holds_such_a_parameter() -> None:
    with pytest.raises(ConfigurationError, match=r"a parameter of optimizer 0 is a ShardedTensor"):
        hf.Checkpointer(MemoryStore(), model=nn.Linear(2, 2), optimizer=SGD([sharded()], lr=0.1))
