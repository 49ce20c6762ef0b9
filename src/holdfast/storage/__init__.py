"""Where bytes are kept: the Store protocol, its backends, and how to open one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.storage.base import Buffer, ObjectInfo, Store
from holdfast.storage.local import LocalStore
from holdfast.storage.memory import MemoryStore
from holdfast.storage.retry import RetryingStore
from holdfast.storage.url import open_store

if TYPE_CHECKING:
    from holdfast.storage.object import ObjectStore

__all__ = ["Buffer", "LocalStore", "MemoryStore", "ObjectInfo", "ObjectStore", "RetryingStore", "Store", "open_store"]


def __getattr__(name: str) -> Any:
    if name == "ObjectStore":  # needs the optional obstore
        from holdfast.storage.object import ObjectStore

        return ObjectStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
