"""The state of servers' optimizers as a Checkpointer stores that of their counterparts in ``torch.optim``.

With it a training that ran on servers can be resumed in one process of torch's, and the other way round. What tables
keep for each row travels with their rows; here is the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from holdfast.policy import SGD, Adagrad, Adam, Optimizer

STEP: Final = "step"
"""What torch calls the count of a parameter's steps; servers have one for each row."""
_COUNTING = ("Adagrad", "Adam", "SparseAdam")  # optimizers of torch that count them


def torch_optimizer(
    optimizer: Optimizer,
    *,
    step: int,
    tables: Mapping[str, Sequence[int]] | None = None,
    slots: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
    dense: bool = False,
) -> dict[str, Any]:
    """As the torch optimizer of the same kind is stored; arrays become tensors when they are written.

    Args:
        optimizer: Of servers.
        step: Of the training.
        tables: The shapes of tables, by the names of their weights.
        slots: Those of all other parameters, by parameter and slot. A count of steps among them is that parameter's.
        dense: Whether it is the optimizer of dense parameters; small tables may be among them.
    """
    kind, options = _in_torch(optimizer, dense=dense)
    names = sorted(slot.name for slot in optimizer.rule(dense=dense).slots)
    count: dict[str, Any] = {}
    if kind in _COUNTING:
        count = {STEP: step if kind == "SparseAdam" else np.array(step, np.float32)}
    others = {name: {**count, **own} for name, own in (slots or {}).items()}
    state = {**dict.fromkeys(tables or {}, count), **others}
    return {
        "kind": kind,
        "groups": [{"parameters": list(state), "options": options}],
        "state": state,
        "tables": {name: {"shape": list(shape), "slots": names} for name, shape in (tables or {}).items()},
        "shared": {},
        "inner": {},
        "own": None,
    }


def _in_torch(optimizer: Optimizer, *, dense: bool) -> tuple[str, dict[str, Any]]:
    """The name of torch's class, and the options that both have."""
    match optimizer:
        case SGD(lr, momentum=momentum, nesterov=nesterov):
            return "SGD", {"lr": lr, "momentum": momentum, "nesterov": nesterov}
        case Adagrad(lr, eps=eps):
            return "Adagrad", {"lr": lr, "eps": eps}
        case Adam(lr, betas=betas, eps=eps):
            return "Adam" if dense else "SparseAdam", {"lr": lr, "betas": betas, "eps": eps}
    return type(optimizer).__name__, {"lr": optimizer.lr}
