"""The DTensors in a captured training: found, and replaced by what a checkpoint says in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from holdfast.checkpoint.training.dtensors import is_dtensor

StandIn = Callable[[str, Tensor], Any]  # for a DTensor, which is called like this


def replaced(training: Mapping[str, Any], stand_in: StandIn) -> dict[str, Any]:
    """The training with something else for every DTensor of its models and optimizers, in the same order."""
    model = {name: _put(f"tensor {name!r}", value, stand_in) for name, value in training["model"].items()}
    optimizers = [
        replaced_in_optimizer(each, f"optimizer {number}", stand_in)
        for number, each in enumerate(training["optimizers"])
    ]
    return {**training, "model": model, "optimizers": optimizers}


def replaced_in_optimizer(optimizer: Mapping[str, Any], path: str, stand_in: StandIn) -> dict[str, Any]:
    """The same of what was captured of one optimizer."""
    state = {
        name: {key: _put(f"state {key!r} of {name!r} ({path})", value, stand_in) for key, value in values.items()}
        for name, values in optimizer["state"].items()
    }
    inner = {at: replaced_in_optimizer(each, f"{path}, {at}", stand_in) for at, each in optimizer["inner"].items()}
    return {**optimizer, "state": state, "inner": inner}


def _put(name: str, value: Any, stand_in: StandIn) -> Any:
    return stand_in(name, value) if is_dtensor(value) else value
