"""State that an optimizer keeps in its own kind of state dict: methods it overrides, hooks that add to it.

The dictionary is stored unchanged, except that tensors already stored under their parameters' names, table rows among
them, are replaced by references. So it is loaded last, after these have been restored.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from holdfast.errors import UnsupportedState

_METHODS = ("state_dict", "load_state_dict")
_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_IS_OURS = "_is_holdfasts"
_ELSEWHERE = "holdfast.elsewhere"  # the only key of what stands for a tensor that is stored under its parameter

Places = Mapping[int, tuple[Any, ...]]  # where tensors are stored, by their identities


def keeps_own_state(optimizer: Optimizer) -> bool:
    """Whether its state dict may hold more than torch's own would."""
    own = vars(optimizer)
    if _overrides(type(optimizer)) or any(name in own for name in _METHODS):  # type: ignore[arg-type]  # of a class
        return True
    hooks = (hook for name in _HOOKS if (found := own.get(name)) for hook in found.values())
    return any(not getattr(hook, _IS_OURS, False) for hook in hooks)


@lru_cache(maxsize=1024)
def _overrides(kind: type[Optimizer]) -> bool:
    return any(getattr(kind, name) is not getattr(Optimizer, name) for name in _METHODS)


def as_ours(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a hook of this library: it adds nothing to a state dict."""
    setattr(hook, _IS_OURS, True)
    return hook


def capture_own(optimizer: Optimizer, places: Places) -> Any:
    """What its ``state_dict()`` gives, without tensors that are stored elsewhere."""
    try:
        state = optimizer.state_dict()
    except Exception as error:
        kind = type(optimizer).__name__
        raise UnsupportedState(f"{kind}.state_dict() raises {error!r}: its state cannot be saved") from error
    return _without(state, places)


def load_own(optimizer: Optimizer, stored: Any, find: Callable[[tuple[Any, ...]], Tensor]) -> None:
    """Hand ``stored`` to ``load_state_dict()``, then undo what torch's own does to tensors: it casts and replaces them.

    Raises whatever the optimizer raises, and KeyError for a tensor that was not restored.
    """
    kept = {parameter: dict(state) for parameter, state in optimizer.state.items() if isinstance(parameter, Tensor)}
    optimizer.load_state_dict(_with(stored, find))
    for parameter, state in kept.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and key in optimizer.state.get(parameter, {}):
                optimizer.state[parameter][key] = value


def _without(value: Any, places: Places) -> Any:
    if isinstance(value, Tensor):
        return {_ELSEWHERE: places[id(value)]} if id(value) in places else value
    if isinstance(value, Mapping) and _ELSEWHERE in value:
        raise UnsupportedState(f"a state dict uses the key {_ELSEWHERE!r}, which is reserved; rename it")
    return _mapped(value, lambda item: _without(item, places))


def _with(value: Any, find: Callable[[tuple[Any, ...]], Tensor]) -> Any:
    if type(value) is dict and value.keys() == {_ELSEWHERE}:
        return find(value[_ELSEWHERE])
    return _mapped(value, lambda item: _with(item, find))


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container with its items changed; whatever else it is, as it is."""
    if type(value) is dict or type(value) is OrderedDict:
        return type(value)((key, change(item)) for key, item in value.items())
    if type(value) is defaultdict:
        return defaultdict(value.default_factory, {key: change(item) for key, item in value.items()})
    if type(value) is list or type(value) is tuple:
        return type(value)(change(item) for item in value)
    return value
