"""A store in memory that counts every byte that is written, and what it holds: now, and at most so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from holdfast.checkpoint.commit import lease
from holdfast.format.catalog import DATA_PREFIX
from holdfast.storage import MemoryStore
from holdfast.storage.base import Buffer
from holdfast.storage.buffers import as_views

KINDS = ("bundles", "manifests", "catalogs", "others")


class MeteredStore(MemoryStore):
    """Counts all objects, also those that are gone soon after, such as leases."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.written: Counter[str] = Counter()  # bytes by the kind of object
        self.most_held_bytes = 0

    @property
    def written_bytes(self) -> int:
        """All bytes that were ever put."""
        return self.written.total()

    @property
    def held_bytes(self) -> int:
        """All bytes that are there now."""
        return sum(info.size_bytes for info in self.list())

    def put(self, name: str, data: Buffer | Sequence[Buffer], *, create: bool = False) -> None:
        super().put(name, data, create=create)
        self.written[_kind(name)] += sum(len(view) for view in as_views(data))
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)

    def come_to_rest(self) -> None:
        """Wait for the agent: it holds a lease until it has deleted what its save replaced."""
        while any(self.list(lease.PREFIX)):
            time.sleep(0.001)


def _kind(name: str) -> str:
    leaf = name.rpartition("/")[2]
    if name.startswith(DATA_PREFIX) and leaf.endswith(".safetensors"):
        return "bundles"
    if name.startswith(DATA_PREFIX) and leaf.startswith("part-"):
        return "manifests"
    return "catalogs" if name.startswith("catalog/") else "others"
