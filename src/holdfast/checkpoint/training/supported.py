"""Refuses models that are sharded over ranks with a clear message, before anything else fails on them.

They are recognised by the names of their types: a library that is not imported is not in use, and TorchRec may not be
installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from holdfast.checkpoint.training.divided import Divided, Undivided
from holdfast.checkpoint.training.tables import join_names
from holdfast.errors import ConfigurationError

_REMEDY = (
    "This release supports models that every rank holds in full (a single process, DistributedDataParallel, or your "
    "own gradient exchange), DTensors (fully_shard, tensor parallelism) and TorchRec's DistributedModelParallel. Train "
    "this part that way, or keep saving it with torch.distributed.checkpoint and pass Holdfast only the others"
)
_MODULES = {
    "torch.distributed.fsdp": "FSDP",
    "torchrec.distributed": "TorchRec's sharded modules",
    "torchrec.inference": "TorchRec's sharded modules",
    "fairscale.nn": "FairScale's sharded modules",
}
_TENSORS = {
    "ShardedTensor": "a ShardedTensor",
    "FlatParameter": "a part of FSDP's flat parameters",
}


def require_held(models: Mapping[str, nn.Module], divided: Divided | None = None) -> None:
    """Raise ConfigurationError if a model to restore is spread over ranks in a way that ``divided`` does not know."""
    for name, what in _sharded_modules(models, divided or Undivided()):
        raise ConfigurationError(
            f"{name} is {what}: this process holds only a part of it. Pass the model as it was before it was sharded, "
            "or restore all ranks together, with resume() of a Checkpointer"
        )


def require_whole(
    models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer], divided: Divided | None = None
) -> None:
    """Raise ConfigurationError if a model, or what an optimizer holds, is spread over ranks.

    What ``divided`` knows is fine.
    """
    known = divided or Undivided()
    for name, what in (*_sharded_modules(models, known), *_sharded_tensors(models), *_sharded_state(optimizers)):
        raise ConfigurationError(f"{name} is {what}: its parameters are sharded across ranks. {_REMEDY}")


def _sharded_modules(models: Mapping[str, nn.Module], divided: Divided) -> Iterator[tuple[str, str]]:
    for key, model in models.items():
        for path, module in model.named_modules():
            if divided.knows(module):
                continue
            for kind in type(module).__mro__:
                library = next((each for prefix, each in _MODULES.items() if kind.__module__.startswith(prefix)), None)
                if library is not None:
                    yield _called("module", key, path), f"one of {library} ({kind.__qualname__})"


def _sharded_tensors(models: Mapping[str, nn.Module]) -> Iterator[tuple[str, str]]:
    for key, model in models.items():
        for path, tensor in (*model.named_parameters(), *model.named_buffers()):
            if what := _sharded(tensor):
                yield _called("parameter", key, path), what


def _sharded_state(optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, str]]:
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if what := _sharded(parameter):
                    yield f"a parameter of optimizer {number}", what


def _sharded(tensor: object) -> str | None:
    kinds = {kind.__name__ for value in (tensor, getattr(tensor, "data", None)) for kind in type(value).__mro__}
    return next((what for name, what in _TENSORS.items() if name in kinds), None)


def _called(what: str, key: str, path: str) -> str:
    name = join_names(key, path)
    return f"{what} {name!r}" if name else "the model"
