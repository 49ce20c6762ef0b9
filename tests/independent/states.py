"""Checks a state by docs/spec/state.md alone: the standard library and NumPy, nothing of Holdfast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.independent.objects import Json, require

_OWN = {"step", "reader", "rng"}
_DELTAS = {"count", "total", "previous", "last"}
_JOB = {"deltas", "restores", "coarsest", "pls"}
_TRAINING = {"model": dict, "modules": dict, "optimizers": list, "extra": dict}


def check_state(value: Any, entry: Json, rank: int) -> None:
    """Raises Damaged if this is not the state that a part of this rank holds."""
    name = f"{entry['id']}, the state of rank {rank}"
    wanted = _OWN | ({"job", "training"} if rank == 0 else set())
    require(type(value) is dict and value.keys() == wanted, name, "has other fields")
    require(value["step"] == entry["step"], name, "is of another step")
    require(value["reader"] is None or type(value["reader"]) is dict, name, "has no reader's place")
    require(value["rng"] is None or _is_rng(value["rng"]), name, "has no random state")
    if rank == 0:
        require(_is_job(value["job"]), name, "tells no job")
        require(_is_training(value["training"]), name, "tells no training")


def _is_rng(value: Any) -> bool:
    if type(value) is not dict or value.keys() != {"python", "numpy", "torch", "cuda"}:
        return False
    python, states = value["python"], [value["torch"], *value["cuda"].values()]
    return (
        python.keys() == {"version", "words", "gauss"}
        and python["words"].dtype == np.dtype("<u4")
        and type(value["numpy"]) is dict
        and all(state.dtype == np.uint8 for state in states)
        and all(type(device) is int for device in value["cuda"])
    )


def _is_job(value: Any) -> bool:
    if type(value) is not dict or value.keys() != _JOB:
        return False
    deltas = value["deltas"]
    if (
        type(deltas) is not dict
        or list(deltas) != ["count", "total", "previous", "last"]
        or type(deltas["count"]) is not int
    ):
        return False
    amounts = [*deltas.values(), *(item for item in (value["pls"] or {}).values() if item is not None)]
    return (
        all(type(amount) in (int, float) and 0 <= amount < math.inf for amount in amounts)
        and all(type(count) is int and count >= 0 for count in (value["restores"], *value["coarsest"].values()))
        and all(type(table) is str for table in value["coarsest"])
    )


def _is_training(value: Any) -> bool:
    if type(value) is not dict or value.keys() - {"weights_only"} != _TRAINING.keys():
        return False
    kinds = all(type(value[name]) is kind for name, kind in _TRAINING.items())
    return kinds and all(isinstance(each, np.ndarray) for each in value["model"].values())
