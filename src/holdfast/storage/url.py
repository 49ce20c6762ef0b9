"""Opens the store that a URL names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import unquote

from holdfast.errors import ConfigurationError
from holdfast.storage.base import Store
from holdfast.storage.local import LocalStore
from holdfast.storage.memory import shared_memory_store

OBJECT_SCHEMES = ("s3", "gs", "gcs", "az", "abfs")
_SCHEMES = ("file", "memory", *OBJECT_SCHEMES)


def open_store(
    url: str | os.PathLike[str], *, options: Mapping[str, str] | None = None, patience_s: float | None = None
) -> Store:
    """The store at a local path or a ``file://``, ``memory://``, ``s3://``, ``gs://``, ``az://`` or ``abfs://`` URL.

    ``options`` go to the object store's client (endpoint, region, credentials, ``allow_http``, ``timeout``, ...) and
    take precedence over environment variables. ``patience_s`` is how long the caller will retry a store that does not
    respond: a single request waits no longer than that (but at least five seconds and at most a minute, or longer while
    it moves megabytes). Nothing is contacted or created yet.
    """
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        _refuse_half_urls(text)
        scheme, rest = "file", text
    elif scheme == "file":
        rest = _path_of(text, rest)
    if scheme in OBJECT_SCHEMES:
        from holdfast.storage.object import ObjectStore
        from holdfast.storage.object_client import answer_time_s

        return ObjectStore(text, options, answer_s=answer_time_s(patience_s))
    if scheme not in _SCHEMES:
        raise ConfigurationError(f"{text}: unknown scheme {scheme!r}; use a local path or one of {_known()}")
    if options:
        raise ConfigurationError(f"{text}: options are for object stores, not for a {scheme} store: {sorted(options)}")
    return shared_memory_store(rest) if scheme == "memory" else LocalStore(rest)


def _refuse_half_urls(text: str) -> None:
    """``s3:/bucket`` would otherwise quietly become a local directory."""
    if not text:
        raise ConfigurationError("the URL is empty; pass a local path or a URL")
    if text.partition(":")[0] in _SCHEMES and ":" in text:
        raise ConfigurationError(f"{text}: the scheme must be followed by '://', as in {_known()}")


def _path_of(text: str, rest: str) -> str:
    path = unquote(rest.removeprefix("localhost"))
    if not path.startswith("/"):
        raise ConfigurationError(f"{text}: a file URL has three slashes and an absolute path, as in file:///data/run")
    return path


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in _SCHEMES)
