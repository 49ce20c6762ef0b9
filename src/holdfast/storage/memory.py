"""Objects in this process's memory, for tests and trials."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

from holdfast.errors import ObjectExists, ObjectNotFound
from holdfast.runtime import SYSTEM, Runtime
from holdfast.storage.base import Buffer, ObjectInfo
from holdfast.storage.buffers import as_views, check_complete, check_range
from holdfast.storage.names import check_name, check_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    content: bytes
    modified_s: float


class MemoryStore:
    """A Store that lives as long as the process. It survives no power cut; everything else holds."""

    def __init__(self, name: str = "", runtime: Runtime = SYSTEM) -> None:
        self._name = name
        self._runtime = runtime
        self._objects: dict[str, _Object] = {}
        self._lock = Lock()

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        check_name(name)
        item = _Object(content=b"".join(as_views(data)), modified_s=self._runtime.wall_s())
        with self._lock:
            if create and name in self._objects:
                raise ObjectExists(f"{self.url}: {name} already exists")
            self._objects[name] = item

    def get(self, name: str) -> Buffer:
        check_name(name)
        try:
            return self._objects[name].content
        except KeyError:
            raise ObjectNotFound(f"{self.url}: no object {name}") from None

    def get_range(self, name: str, start: int, stop: int, *, into: memoryview | None = None) -> Buffer:
        check_range(start, stop)
        content = memoryview(self.get(name))
        start = min(start, len(content))
        return check_complete(name, content[start:stop], start, stop)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        check_prefix(after)
        with self._lock:
            objects = sorted(self._objects.items())
        names = [name for name, _ in objects]
        return (
            ObjectInfo(name=name, size_bytes=len(item.content), modified_s=item.modified_s)
            for name, item in objects[bisect_right(names, after) :]
            if name.startswith(prefix)
        )

    def delete(self, names: Iterable[str]) -> None:
        for name in [check_name(name) for name in names]:
            with self._lock:
                self._objects.pop(name, None)

    def now_s(self) -> float:
        return self._runtime.wall_s()


_shared: dict[str, MemoryStore] = {}


def shared_memory_store(name: str) -> MemoryStore:
    """The one store of this process that is known as ``memory://name``."""
    return _shared.setdefault(name, MemoryStore(name))
