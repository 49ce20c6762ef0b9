"""What optimizers hold, as a list of objects: compared by identity, it shows within a save that nothing has changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.checkpoint.training.wrappers import may_hold_others

CONSTANTS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
_LISTED = frozenset({dict, OrderedDict, list})  # attributes whose contents are listed


def held_objects(optimizers: Sequence[Optimizer]) -> list[Any]:
    """Their attributes but for constants, what these hold, and all parameters.

    No function of ours is called for each of them: that would take most of the time.
    """
    found: list[Any] = []
    for optimizer in optimizers:
        for name, value in optimizer.__dict__.items():
            kind = type(value)
            if kind in CONSTANTS:
                continue
            found.append(name)
            found.append(value)
            if kind is dict or kind is OrderedDict:
                found += value.values()
            elif kind is list:
                found += value
        for group in optimizer.param_groups:
            found += group["params"]
    return found


def shows_others(optimizers: Sequence[Optimizer]) -> bool:
    """Whether ``held_objects`` would show another optimizer inside of one of these."""
    return all(
        name == "state" or type(value) in _LISTED or not may_hold_others(value)
        for optimizer in optimizers
        for name, value in vars(optimizer).items()
    )


def are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether these are the same objects. Who keeps the list keeps them alive: no other gets the identity of one."""
    return len(now) == len(before) and all(map(is_, now, before))
