"""Checks of policy parameters: each raises ConfigurationError naming the class and the parameter."""

from __future__ import annotations

import sys

from holdfast.errors import ConfigurationError


def require(condition: bool, owner: object, name: str, expected: str, value: object) -> None:
    """Refuse ``value`` unless ``condition``."""
    if not condition:
        raise ConfigurationError(f"{type(owner).__name__}: {name} must be {expected}, got {value!r}")


def require_count(owner: object, name: str, value: object) -> None:
    """A whole number of at least one. ``True`` is no number."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    require(is_whole and value >= 1, owner, name, "a whole number of at least 1", value)  # type: ignore[operator]


def require_whole(owner: object, name: str, value: object) -> None:
    """A whole number of at least zero."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    require(is_whole and value >= 0, owner, name, "a whole number of at least 0", value)  # type: ignore[operator]


def require_flag(owner: object, name: str, value: object) -> None:
    """One of the two, and nothing that merely counts as one of them."""
    require(isinstance(value, bool), owner, name, "True or False", value)


def require_duration(owner: object, name: str, value: object) -> None:
    """A finite number above zero."""
    require(is_finite_number(value) and value > 0, owner, name, "a finite number above 0", value)  # type: ignore[operator]


def is_finite_number(value: object) -> bool:
    """True for an int or float that is neither NaN nor infinite, nor an integer too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
