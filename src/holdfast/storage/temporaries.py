"""Removes what writers left that died in a put, where a store has such things."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.storage.base import ObjectInfo, Store

IsLeft = Callable[[ObjectInfo], bool]


def remove_temporaries(store: Store, is_left: IsLeft) -> None:
    """Remove temporaries, each named like the object that it was to become, that nobody will finish."""
    remove: Callable[[IsLeft], None] | None = getattr(store, "remove_temporaries", None)
    if remove is not None:
        remove(is_left)
