"""The state of servers' optimizers as a Checkpointer stores that of their counterparts in ``torch.optim``.

With it a training that ran on servers can be resumed in one process of torch's, and the other way round. What tables
keep for each row travels with their rows; here is the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.shards.shard import Shard
from holdfast.checkpoint.training.slot_names import weight_name
from holdfast.format.host_values import HostTensor
from holdfast.policy import SGD, Adagrad, Adam, Optimizer


def table_optimizer(optimizer: Optimizer, shards: Sequence[Shard], step: int) -> dict[str, Any]:
    """The optimizer of tables; ``step`` is that of the training."""
    kind = "SparseAdam" if isinstance(optimizer, Adam) else type(optimizer).__name__
    counted: dict[str, Any] = {"SparseAdam": {"step": step}, "Adagrad": {"step": _number(step)}}
    tables = {
        weight_name(shard.table): {
            "shape": list(shard.spec.shape),
            "slots": [column.name for column in shard.spec.slots],
        }
        for shard in shards
    }
    return _tree(kind, optimizer, {name: counted.get(kind, {}) for name in tables}, tables)


def dense_optimizer(optimizer: Optimizer, slots: Mapping[str, Mapping[str, NDArray[Any]]], step: int) -> dict[str, Any]:
    """The optimizer of dense parameters; ``slots`` are those of each, in its shape, by its name."""
    kind = type(optimizer).__name__
    counted = {"step": _number(step)} if isinstance(optimizer, Adam | Adagrad) else {}
    state = {
        name: {**counted, **{slot: HostTensor(np.asarray(values)) for slot, values in own.items() if slot != "step"}}
        for name, own in slots.items()
    }
    return _tree(kind, optimizer, state, {})


def _tree(kind: str, optimizer: Optimizer, state: Mapping[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": kind,
        "groups": [{"parameters": list(state), "options": _options(optimizer)}],
        "state": dict(state),
        "tables": dict(tables),
        "shared": {},
        "inner": {},
        "own": None,
    }


def _options(optimizer: Optimizer) -> dict[str, Any]:
    match optimizer:
        case SGD():
            return {"lr": optimizer.lr, "momentum": optimizer.momentum, "nesterov": optimizer.nesterov}
        case Adam():
            return {"lr": optimizer.lr, "betas": optimizer.betas, "eps": optimizer.eps}
        case Adagrad():
            return {"lr": optimizer.lr, "eps": optimizer.eps}
    return {"lr": optimizer.lr}


def _number(step: int) -> HostTensor:
    return HostTensor(np.array(step, dtype=np.float32))
