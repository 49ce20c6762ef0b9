"""A training's state, taken apart; as it was last time, where every object that decides it is still the same one.

Training waits for it, and from one save to the next only the contents of tensors change. So all objects that modules
and optimizers hold (their children, parameters, options, states) are listed again, in the same order, and compared by
identity; of tensors also where they lie and in which form. Numbers, strings and tuples of them never change, so the
same object means the same value. What could change without one of these objects being another one, such as the state
of extras, is taken apart at every save.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.checkpoint.training.held_objects import CONSTANTS, are_same, held_objects, shows_others
from holdfast.checkpoint.training.own_state import keeps_own_state
from holdfast.checkpoint.training.state import TrainingState
from holdfast.checkpoint.training.wrappers import inner_optimizers
from holdfast.format.tree import Node, TreeBuilder

Training = dict[str, Any]  # the fields of a training, as nodes


class _Places(NamedTuple):
    """Where tensors are, and in which form."""

    addresses: list[int]
    shapes: list[torch.Size]
    strides: list[tuple[int, ...]]
    dtypes: list[torch.dtype]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> _Places:
        """Those of tensors with memory of their own."""
        return cls(
            [each.data_ptr() for each in tensors],
            [each.shape for each in tensors],
            [each.stride() for each in tensors],
            [each.dtype for each in tensors],
        )


class _Known(NamedTuple):
    """What was taken apart, and what it depends on."""

    modules: list[nn.Module]
    objects: list[Any]
    originals: list[Tensor]  # the tensors among them
    places: _Places
    model: Node
    optimizers: Node
    tensors: list[Tensor]  # of these nodes
    has_extra_state: bool  # whether modules add to the state themselves

    def is_current(self, optimizers: Sequence[Optimizer]) -> bool:
        """Whether it would be the same now."""
        return are_same(_objects(self.modules, optimizers), self.objects) and self.places == _Places.of(self.originals)


class KnownState:
    """Takes a training apart at every save. Not for models with DTensors, whose tiles are stored elsewhere."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._known: _Known | None = None

    def take_apart(self) -> tuple[Training, TreeBuilder]:
        """The training, and what goes on with the tree it is a part of. Raises UnsupportedState."""
        state, known = self._state, self._known
        if known is not None and known.is_current(state.optimizers):
            builder = TreeBuilder(tensors=known.tensors)
            model, optimizers = known.model, known.optimizers
            modules = state.capture_modules() if known.has_extra_state else {}
            extra = state.capture_extra()
        else:
            captured = state.capture()
            builder = TreeBuilder()
            model = builder.node(captured["model"], "training", "model")
            optimizers = builder.node(captured["optimizers"], "training", "optimizers")
            self._known = self._learnt(model, optimizers, builder.tensors)
            modules, extra = captured["modules"], captured["extra"]
        return {
            "model": model,
            "modules": builder.node(modules, "training", "modules") if modules else {},
            "optimizers": optimizers,
            "extra": builder.node(extra, "training", "extra") if extra else {},
        }, builder

    def _learnt(self, model: Node, optimizers: Node, tensors: Sequence[Tensor]) -> _Known | None:
        """What to compare with next time; None where a comparison of objects would miss a change."""
        state = self._state
        if not state.is_plain or any(each.is_complex() for each in tensors):  # conjugated views would be copies
            return None
        if not (shows_others(state.optimizers) and all(map(_shows_changes, state.optimizers))):
            return None
        modules = state.modules()
        objects = _objects(modules, state.optimizers)
        originals = [each for each in objects if isinstance(each, Tensor)]
        if any(each.layout is not torch.strided for each in originals):
            return None
        return _Known(
            modules=modules,
            objects=objects,
            originals=originals,
            places=_Places.of(originals),
            model=model,
            optimizers=optimizers,
            tensors=list(tensors),
            has_extra_state=bool(state.capture_modules()),
        )


def _objects(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> list[Any]:
    """Everything that these hold."""
    found = held_objects(optimizers)
    for module in modules:
        if children := module._modules:
            found += children
            found += children.values()
        if parameters := module._parameters:
            found += parameters
            found += parameters.values()
        if buffers := module._buffers:
            found += buffers
            found += buffers.values()
            found += module._non_persistent_buffers_set
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            found += group
            found += group.values()
        for parameter, state in optimizer.state.items():
            found.append(parameter)
            if type(state) is dict:
                found += state
                found += state.values()
            else:
                found.append(state)
    return found


def _shows_changes(optimizer: Optimizer) -> bool:
    """Whether all that decides its tree is among ``_objects``."""
    if keeps_own_state(optimizer) or inner_optimizers(optimizer) or type(optimizer.state) is not defaultdict:
        return False
    groups = ((key, value) for group in optimizer.param_groups for key, value in group.items())
    if not all(type(value) is list if key == "params" else _is_constant(value) for key, value in groups):
        return False
    return all(
        isinstance(parameter, Tensor) and type(state) is dict and all(map(_is_constant, state.values()))
        for parameter, state in optimizer.state.items()
    )


def _is_constant(value: object) -> bool:
    """Whether the same object means the same value; of a tensor, but for its contents."""
    kind = type(value)
    if kind is tuple:
        return all(map(_is_constant, value))  # type: ignore[call-overload]
    return kind in CONSTANTS or kind is Tensor or kind is nn.Parameter
