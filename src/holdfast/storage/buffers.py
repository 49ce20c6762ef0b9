"""The bytes that go in and out of a store."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import ConfigurationError, DamagedData
from holdfast.storage.base import Buffer


def as_views(data: Buffer | Sequence[Buffer]) -> list[memoryview]:
    """Flat byte views of one or several buffers, empty ones left out, nothing copied."""
    buffers = [data] if isinstance(data, bytes | bytearray | memoryview) else data
    try:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
    except TypeError as error:
        raise ConfigurationError(f"an object is written from contiguous buffers: {error}") from error
    return [view for view in views if view.nbytes]


def total_bytes(views: Sequence[memoryview]) -> int:
    """What the views hold together."""
    return sum(view.nbytes for view in views)


def same_bytes(content: Buffer, views: Sequence[memoryview]) -> bool:
    """Whether the views, concatenated, equal ``content``."""
    remaining = memoryview(content)
    if remaining.nbytes != total_bytes(views):
        return False
    for view in views:
        if remaining[: view.nbytes] != view:
            return False
        remaining = remaining[view.nbytes :]
    return True


def check_range(start: int, stop: int) -> None:
    """Refuse a range that no object can have."""
    if not 0 <= start <= stop:
        raise ConfigurationError(f"bytes [{start}, {stop}) are not a range")


def check_complete(name: str, content: Buffer, start: int, stop: int) -> Buffer:
    """Return ``content``, or raise DamagedData if it is less than the range asked for."""
    if len(content) != stop - start:
        found = start + len(content) if len(content) else f"at most {start}"
        raise DamagedData(name, f"has {found} bytes where at least {stop} were expected: it is truncated")
    return content
