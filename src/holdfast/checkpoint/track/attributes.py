"""Warns about optimizer state in plain attributes, which is in no state dict and therefore not saved.

Only optimizers that are not torch's own are checked, and of their attributes only data: numbers, strings, tensors,
arrays, generators, and containers of these.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from holdfast.checkpoint.track.notices import users_level
from holdfast.checkpoint.training.own_state import keeps_own_state
from holdfast.errors import HoldfastWarning

_SCALARS = (type(None), bool, int, float, complex, str, bytes)
_MOST_ITEMS = 10_000  # of a container; a larger one is told by its identity and its length
_MOST_BYTES = 1 << 20
# What every optimizer has, and what learning rate schedulers and scalers of torch put there.
_KNOWN = {*vars(SGD([nn.Parameter(torch.zeros(1))])), "step", "_opt_called", "_step_count", "grad_scale", "found_inf"}


class PlainAttributes:
    """The attributes of some optimizers as first seen, and those already warned about."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._before = [(each, _marks(each)) for each in optimizers if not _is_torchs(each)]
        self._told: set[tuple[int, str]] = set()

    def warn(self) -> None:
        """Warn about those that changed since, each once."""
        for optimizer, before in self._before:
            changed = [name for name, mark in _marks(optimizer).items() if before.get(name) != mark]
            new = [name for name in changed if (id(optimizer), name) not in self._told]
            held = _Held(optimizer) if new else None
            for name in new:
                self._told.add((id(optimizer), name))
                if held is not None and not held.holds(name, vars(optimizer)[name]):
                    _warn(f"{type(optimizer).__name__}.{name}")


def _warn(attribute: str) -> None:
    warnings.warn(
        f"{attribute} has changed since the Checkpointer was created but is in no state dict: it is not saved, and "
        "after resume() it has the value that the constructor sets. Keep it in param_groups or in state, or return "
        "it from state_dict() and restore it in load_state_dict()",
        HoldfastWarning,
        stacklevel=users_level() + 1,
    )


def _is_torchs(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.partition(".")[0] == "torch"


def _marks(optimizer: Optimizer) -> dict[str, object]:
    """What reveals a changed attribute, by name."""
    found = {name: _mark(value) for name, value in vars(optimizer).items() if name not in _KNOWN}
    return {name: mark for name, mark in found.items() if mark is not None}


def _mark(value: object) -> object:
    """Something that differs once the value has changed; None for anything that is not data."""
    if isinstance(value, _SCALARS):
        return type(value), repr(value)
    if isinstance(value, Tensor):
        return id(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _MOST_BYTES else id(value)
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, Mapping):
        return _mark_items([*value.keys(), *value.values()], value)
    if isinstance(value, Sequence | Set):
        return _mark_items(list(value), value)
    return None


def _mark_items(items: list[object], container: object) -> object:
    if len(items) > _MOST_ITEMS:
        return id(container), len(items)
    return type(container), tuple(_mark(item) for item in items)


class _Held:
    """What an optimizer's state dict holds."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._is_own = keeps_own_state(optimizer)
        self._names: set[str] = set()
        self._identities: set[int] = set()
        self._scalars: set[object] = set()
        self._note(optimizer.state_dict(), top=True)

    def holds(self, name: str, value: object) -> bool:
        """Whether an attribute is in it: as the same object, or, where it is no longer torch's, by name or value."""
        if isinstance(value, _SCALARS):
            by_value = not isinstance(value, bool | None) and _mark(value) in self._scalars
            return self._is_own and (name.lstrip("_") in self._names or by_value)
        return id(value) in self._identities or (self._is_own and name.lstrip("_") in self._names)

    def _note(self, value: object, *, top: bool = False) -> None:
        self._identities.add(id(value))
        for key, item in _items(value):
            if isinstance(key, str):
                self._names.add(key.lstrip("_"))
            # torch's own part holds numbers for parameters, which prove nothing
            if not (top and key in ("state", "param_groups")) and isinstance(item, _SCALARS):
                self._scalars.add(_mark(item))
            self._note(item)


def _items(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from ((None, item) for item in value)
