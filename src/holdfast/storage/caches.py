"""Reads past caches, where a store stands behind one."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.storage.base import Store


def forget(store: Store, name: str) -> None:
    """Let the next read of an object come from where it is kept. A request to an object store does so anyway."""
    act: Callable[[str], None] | None = getattr(store, "forget", None)
    if act is not None:
        act(name)
