"""What ``help()`` says of a public name: its docstring, the arguments it explains, the members it offers."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import holdfast as hf

_ENTRY = re.compile(r"^    (\w+): \S", re.MULTILINE)


def explained(item: Any, section: str = "Args") -> list[str]:
    """The names that a section of a docstring explains, in its order."""
    found = re.search(rf"^{section}:\n((?:    .*\n?|\n)*)", inspect.getdoc(item) or "", re.MULTILINE)
    return _ENTRY.findall(found[1]) if found else []


def arguments(item: Callable[..., Any]) -> list[str]:
    """The arguments that a caller can pass."""
    if isinstance(item, type) and not _is_built_by_us(item):
        return []
    return [name for name in inspect.signature(item).parameters if name not in ("self", "cls")]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties without an underscore, of the class and of those bases that are Holdfast's."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("holdfast")]
    for name in sorted({name for base in ours for name in vars(base) if not name.startswith("_")}):
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property):
            yield name, value
        elif callable(getattr(kind, name)) and not isinstance(getattr(kind, name), enum.Enum):
            yield name, getattr(kind, name)


def handed_out() -> list[type]:
    """Every class that a public function, or a public member of what users hold, returns."""
    holders = (hf.Checkpointer, hf.Run, hf.Follower)
    callables = [hf.open_run, hf.import_checkpoint, *(value for kind in holders for _, value in members(kind))]
    found = {each for item in callables for each in returned(item)}
    return sorted(found, key=lambda each: f"{each.__module__}.{each.__qualname__}")


def returned(item: Callable[..., Any] | property) -> Iterator[type]:
    """The classes of Holdfast in what a function, method or property returns, those inside of containers included."""
    function = item.fget if isinstance(item, property) else item
    yield from _classes(get_type_hints(function).get("return"))


def _classes(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not get_args(hint):
        if hint.__module__.startswith("holdfast"):
            yield hint
        return
    for argument in get_args(hint):
        yield from _classes(argument)


def _is_built_by_us(kind: type) -> bool:
    """Whether its constructor is written, or generated, in Holdfast: not for an Enum, a Protocol, nor a plain error."""
    return (
        not issubclass(kind, enum.Enum)
        and not getattr(kind, "_is_protocol", False)
        and any("__init__" in vars(base) and base.__module__.startswith("holdfast") for base in kind.__mro__)
    )
