"""Every bit of a tracker case's training state, by path, to be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.checkpoint.track.tracker_cases import Training


def values_of(training: Training) -> dict[str, Any]:
    """A copy of every weight, and of everything that the optimizers hold, by path."""
    values = dict(leaves("model", training.net.state_dict()))
    for index, optimizer in enumerate(training.optimizers):
        for number, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            values |= leaves(f"optimizer.{index}.group.{number}", options)
            for place, parameter in enumerate(group["params"]):
                values |= leaves(f"optimizer.{index}.state.{number}.{place}", optimizer.state.get(parameter, {}))
    return values


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(f"{path}.{key}", item)
    elif isinstance(value, list | tuple):
        yield path, type(value)
        for index, item in enumerate(value):
            yield from leaves(f"{path}.{index}", item)
    elif isinstance(value, Tensor) and value.is_sparse:
        yield path, value.is_coalesced()
        yield from leaves(f"{path}.indices", value._indices())
        yield from leaves(f"{path}.values", value._values())
    else:
        yield path, value.detach().clone() if isinstance(value, Tensor) else value


def difference(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Paths that are not in both, or do not hold the same type and bits."""
    shared = expected.keys() & found.keys()
    return sorted(expected.keys() ^ found.keys()) + sorted(p for p in shared if not alike(expected[p], found[p]))


def alike(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def digests_of(training: Training) -> dict[str, str]:
    """The same in few bits, to be sent between processes."""
    return {path: _digest(value) for path, value in values_of(training).items()}


def _digest(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()[:16]}"
