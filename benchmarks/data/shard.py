"""Which part of a dataset this process reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import get_worker_info

from holdfast.errors import ReaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Part ``index`` of ``count``: it reads units index, index + count, index + 2·count, ..."""

    index: int
    count: int

    @classmethod
    def of_this_process(cls) -> Shard:
        """The data loader worker's part, or everything outside of one."""
        worker = get_worker_info()
        return cls(index=worker.id, count=worker.num_workers) if worker else cls(index=0, count=1)

    def check(self, state: Mapping[str, Any]) -> None:
        """Refuse a state that was taken with another number of shards: its units are not ours."""
        if state["shards"] != self.count:
            raise ReaderError(
                f"the reader's state was taken with {state['shards']} shards and is loaded into {self.count}: "
                f"set num_workers so that the number is the same"
            )
