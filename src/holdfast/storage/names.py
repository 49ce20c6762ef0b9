"""What an object may be called."""

from __future__ import annotations

import re
from functools import lru_cache

from holdfast.errors import ConfigurationError

_CHARACTERS = re.compile(r"[A-Za-z0-9._-]*")


def check_name(name: str) -> str:
    """Return ``name``, or raise ConfigurationError if no object may be called so."""
    if not is_name(name):
        raise ConfigurationError(
            f"{name!r} cannot name an object: use '/'-separated segments of A-Z a-z 0-9 . _ - other than '.' and '..'"
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` (of a name, so its last segment may be unfinished or empty), or raise ConfigurationError."""
    *whole, unfinished = prefix.split("/")
    if not (all(_is_segment(segment) for segment in whole) and _CHARACTERS.fullmatch(unfinished)):
        raise ConfigurationError(f"{prefix!r} cannot be a prefix of an object name")
    return prefix


@lru_cache(maxsize=8192)
def is_name(name: str) -> bool:
    """Whether an object may be called ``name``."""
    return all(_is_segment(segment) for segment in name.split("/"))


def _is_segment(segment: str) -> bool:
    return segment not in ("", ".", "..") and _CHARACTERS.fullmatch(segment) is not None
