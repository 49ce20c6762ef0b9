"""The seam between Holdfast and the place where bytes are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One listed object."""

    name: str
    size_bytes: int
    modified_s: float  # by the store's clock


class Store(Protocol):
    """Named immutable objects under one prefix.

    Names are relative, ``/``-separated, made of ``[A-Za-z0-9._-]`` segments; anything else, and ``.`` or ``..`` as a
    segment, is refused with ConfigurationError before any operation.

    Guarantees every implementation gives: when ``put`` returns, the object survives a power cut; a reader sees all of
    an object or none of it; of several ``put(create=True)`` of one name exactly one returns and the others raise
    ObjectExists; a ``list`` that starts after a ``put`` returned shows its object. An error from ``put`` leaves it
    unknown whether the object exists. Methods may be called from several threads. Errors are StorageError's.
    """

    @property
    def url(self) -> str:
        """Where this store is, for messages."""
        ...

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        """Write an object; several buffers are written in sequence without being joined."""
        ...

    def get(self, name: str) -> Buffer:
        """The whole object. Raises ObjectNotFound."""
        ...

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Buffer:
        """Bytes ``[start, stop)``; raises DamagedData if the object is shorter.

        ``into`` is memory, large enough, that the store may put them in; where they are is what it returns.
        """
        ...

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose name starts with ``prefix`` (plain string) and sorts after ``after``, in name order."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; one that is already gone is no error."""
        ...

    def now_s(self) -> float:
        """The store's own clock, comparable with ``ObjectInfo.modified_s``."""
        ...
