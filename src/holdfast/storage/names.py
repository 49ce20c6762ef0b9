"""What an object may be called."""

from __future__ import annotations

import re

from holdfast.errors import ConfigurationError

_CHARACTERS = re.compile(r"[A-Za-z0-9._-]*")
_SEGMENT = r"(?!\.\.?(?:/|$))[A-Za-z0-9._-]+"
_NAME = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_FOLDERS = re.compile(rf"(?:{_SEGMENT}/)*")


def check_name(name: str) -> str:
    """Return ``name``, or raise ConfigurationError if no object may be called so."""
    if not is_name(name):
        raise ConfigurationError(
            f"{name!r} cannot name an object: use '/'-separated segments of A-Z a-z 0-9 . _ - other than '.' and '..'"
        )
    return name


def check_prefix(prefix: str) -> str:
    """Return ``prefix`` (of a name, so its last segment may be unfinished or empty), or raise ConfigurationError."""
    folders, slash, unfinished = prefix.rpartition("/")
    if not (_FOLDERS.fullmatch(folders + slash) and _CHARACTERS.fullmatch(unfinished)):
        raise ConfigurationError(f"{prefix!r} cannot be a prefix of an object name")
    return prefix


def is_name(name: str) -> bool:
    """Whether an object may be called ``name``."""
    return _NAME.fullmatch(name) is not None
