"""What is known of DTensors: tensors that torch divides over a mesh of ranks (``fully_shard``, tensor parallelism).

Nothing here imports torch's package of them: as long as nobody else did, there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from holdfast.errors import ConfigurationError
from holdfast.format.boxes import Box

Ranges = list[tuple[int, int]]  # of one dimension, in the order in which a rank holds them


def is_dtensor(value: object) -> TypeGuard[Any]:
    """Whether it is a DTensor."""
    library = sys.modules.get("torch.distributed.tensor")
    kind = getattr(library, "DTensor", None)
    return kind is not None and isinstance(value, kind)


def has_dtensors(models: Mapping[str, nn.Module]) -> bool:
    """Whether there is one in some model."""
    tensors = (each for model in models.values() for each in (*model.parameters(), *model.buffers()))
    return any(map(is_dtensor, tensors)) or any(True for model in models.values() for _ in _managers(model))


def local_of(tensor: Tensor) -> Tensor:
    """The memory that this rank holds of a DTensor; a plain tensor itself.

    It is the tensor that the DTensor is made of, not a view: ``to_local()`` would give a new one at each call. FSDP may
    put another in its place before the first forward pass, so it is never kept.
    """
    found: Tensor = tensor._local_tensor if is_dtensor(tensor) else tensor
    return found


def box_of(tensor: Tensor, name: str) -> Box:
    """Which part of a tensor this rank holds; raises ConfigurationError, with its name, for one that is no box."""
    if not is_dtensor(tensor):
        return Box.whole(tensor.shape)
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        raise ConfigurationError(
            f"{name} is a DTensor on a mesh of {tensor.device_mesh.size()} ranks without this one: every "
            "rank must hold a shard of it. Use a mesh over all ranks, or one of its dimensions"
        )
    ranges: list[Ranges] = [[(0, size)] for size in tensor.shape]
    for placement, parts, number in zip(tensor.placements, tensor.device_mesh.shape, coordinate, strict=True):
        _divide(ranges, placement, parts, number, name)
    return _box(tensor, [_joined(each) for each in ranges], name)


def is_divided(tensor: object) -> bool:
    """Whether ranks hold different parts of it."""
    return is_dtensor(tensor) and not all(placement.is_replicate() for placement in tensor.placements)


def is_on_mesh_of(one: object, other: object) -> bool:
    """Whether two DTensors lie on the same mesh."""
    return is_dtensor(one) and is_dtensor(other) and bool(one.device_mesh == other.device_mesh)


def has_same_division(one: Any, other: Any) -> bool:
    """Whether two DTensors lie on the same mesh in the same way."""
    return is_on_mesh_of(one, other) and bool(one.placements == other.placements)


def divided_like(local: Tensor, parameter: Tensor, shape: Sequence[int]) -> Tensor:
    """The DTensor of which a rank holds ``local``, where it is divided like a parameter."""
    assert is_dtensor(parameter)
    return _dtensor(local, parameter.device_mesh, parameter.placements, shape)


def held_by_all(local: Tensor, parameter: Tensor) -> Tensor:
    """The DTensor that every rank of a parameter's mesh holds in full."""
    from torch.distributed.tensor import Replicate

    assert is_dtensor(parameter)
    return _dtensor(local, parameter.device_mesh, [Replicate()] * parameter.device_mesh.ndim, local.shape)


def describe(tensor: Tensor) -> str:
    """How it is divided, in torch's words."""
    return f"{list(tensor.placements)}" if is_dtensor(tensor) else "not divided"


class SwappedParameters:
    """The DTensors of modules under FSDP, which puts plain parameters in their places while it computes.

    After an evaluation they may stay there until the next backward pass. What optimizers hold, and what is to be saved,
    are the DTensors.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self._known: dict[tuple[int, str], nn.Parameter] = {}
        for model in models.values():
            for manager in _managers(model):
                manager.reshard()
            for manager in _managers(model):
                for module in manager.modules():
                    for name, parameter in module._parameters.items():
                        if is_dtensor(parameter):
                            self._known[id(module), name] = parameter

    def find(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """The parameter of a module that stands behind the one which it has now."""
        return self._known.get((id(module), name), parameter) if self._known else parameter


def _managers(model: nn.Module) -> Iterator[Any]:
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is not None:
        yield from (module for module in model.modules() if isinstance(module, kind))


def _divide(ranges: list[Ranges], placement: Any, parts: int, number: int, name: str) -> None:
    """Leave of each dimension what a placement on one dimension of the mesh gives to this rank."""
    kind = type(placement).__name__
    if kind == "Shard":
        ranges[placement.dim] = _chunk(ranges[placement.dim], parts, number)
    elif kind == "_StridedShard":  # FSDP over tensor parallelism: its shards are those of each earlier one
        groups = [_chunk(ranges[placement.dim], placement.split_factor, each) for each in range(placement.split_factor)]
        ranges[placement.dim] = [each for group in groups for each in _chunk(group, parts, number)]
    elif kind != "Replicate":
        raise ConfigurationError(
            f"{name} is a DTensor with the placement {placement!r}, which is not supported: its values are "
            "not stored anywhere. Redistribute it to Shard or Replicate before creating the Checkpointer"
        )


def _chunk(ranges: Ranges, parts: int, number: int) -> Ranges:
    """One of the parts that torch.chunk makes of a dimension: all of one size, but for the last that are not empty."""
    size = -(-sum(stop - start for start, stop in ranges) // parts)
    low, high, done, found = size * number, size * (number + 1), 0, Ranges()
    for start, stop in ranges:
        first, last = max(low - done, 0), min(high - done, stop - start)
        if first < last:
            found.append((start + first, start + last))
        done += stop - start
    return found


def _joined(ranges: Ranges) -> Ranges:
    """Ranges that follow each other are one."""
    found: Ranges = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def _box(tensor: Any, ranges: Sequence[Ranges], name: str) -> Box:
    if any(len(each) > 1 for each in ranges):
        raise ConfigurationError(
            f"{name} has the placements {describe(tensor)}, by which a rank holds rows that do not follow "
            "each other. This is not supported: redistribute it to Shard, or divide it along another dimension"
        )
    spans = [each[0] if each else (0, 0) for each in ranges]
    box = Box(offsets=tuple(start for start, _ in spans), sizes=tuple(stop - start for start, stop in spans))
    held = tuple(local_of(tensor).shape)
    if held != box.sizes and (box.volume or local_of(tensor).numel()):
        raise ConfigurationError(
            f"{name} has the placements {describe(tensor)} on shape {tuple(tensor.shape)}: this rank would "
            f"hold {box.sizes}, but holds {held}. Make it with distribute_tensor() or fully_shard(), which divide as "
            "placements say"
        )
    return box


def _dtensor(local: Tensor, mesh: Any, placements: Sequence[Any], shape: Sequence[int]) -> Tensor:
    from torch.distributed.tensor import DTensor

    stride = torch.empty(tuple(shape), device="meta").stride()
    made: Tensor = DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)
    return made.detach()
