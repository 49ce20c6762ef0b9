"""Optimizers around optimizers: those that only delegate, and those that keep their own state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch.optim import Optimizer


def unwrapped(optimizer: Any) -> Any:
    """The optimizer behind wrappers that add no state, such as Accelerate's and Lightning's; else what was given.

    A wrapper adds none if its parameter groups, its state and what its state dict holds are those of an optimizer in
    one of its attributes.
    """
    seen: set[int] = set()
    while (inner := _delegate(optimizer)) is not None and id(inner) not in seen:
        seen.add(id(inner))
        optimizer = inner
    return optimizer


def inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The optimizers that another one holds in its attributes, by where they are; not those behind these again."""
    return {path: each for path, each in _attributes(optimizer) if each is not optimizer}


def may_hold_others(value: Any) -> bool:
    """Whether an attribute of an optimizer is one, or may hold some."""
    return _kind_of(type(value)) is not None  # type: ignore[arg-type]  # mypy takes the class's __hash__ for its own


def _delegate(wrapper: Any) -> Optimizer | None:
    for _, inner in _attributes(wrapper):
        shares = (
            getattr(wrapper, "param_groups", None) is inner.param_groups
            and getattr(wrapper, "state", None) is inner.state
        )
        if inner is not wrapper and shares and _keys(wrapper) == _keys(inner):
            return inner
    return None


def _keys(optimizer: Any) -> set[Any]:
    return set(optimizer.state_dict())


def _attributes(holder: Any) -> Iterator[tuple[str, Optimizer]]:
    for name, value in getattr(holder, "__dict__", {}).items():
        kind = _kind_of(type(value))  # type: ignore[arg-type]  # mypy takes the class's __hash__ for its own
        if kind is None:
            continue
        if kind is Optimizer:
            yield name, value
        elif kind is Mapping:
            yield from ((f"{name}[{key!r}]", each) for key, each in value.items() if isinstance(each, Optimizer))
        else:
            yield from ((f"{name}[{index}]", each) for index, each in enumerate(value) if isinstance(each, Optimizer))


@lru_cache(maxsize=1024)  # every save asks, of all attributes
def _kind_of(type_: type) -> type | None:
    """What an attribute of this type can be: an optimizer, or what may hold some."""
    if issubclass(type_, str | bytes):
        return None
    return next((kind for kind in (Optimizer, Mapping, Sequence) if issubclass(type_, kind)), None)
