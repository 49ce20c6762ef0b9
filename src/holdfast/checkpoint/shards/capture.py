"""Decides what a snapshot of one process's shards holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.shards.shard import Shard
from holdfast.checkpoint.shards.tracker import ShardTracker
from holdfast.checkpoint.snapshot.captured import Captured
from holdfast.checkpoint.snapshot.changed import ChangedBytes
from holdfast.checkpoint.snapshot.table_codecs import TableCodecs
from holdfast.checkpoint.snapshot.table_copy import TableCopy
from holdfast.checkpoint.wire.messages import TableSlice
from holdfast.format.catalog import Intent
from holdfast.format.host_values import HostTensor
from holdfast.format.state import RankState, SavedState, rows_tree
from holdfast.format.tree import encode_tree
from holdfast.types import EXACTLY, Kind, Since, Stored


class ShardCapture:
    """Knows the shards, and what moved in them."""

    def __init__(self, shards: Sequence[Shard], tracker: ShardTracker) -> None:
        self._shards = shards
        self._tracker = tracker

    def changed(self, stored: Mapping[str, Stored]) -> ChangedBytes:
        """How much a delta of these shards would hold now, and how much a restore would read above the baseline."""
        return ChangedBytes.of(
            TableCodecs.of(shard.spec, stored.get(shard.table, EXACTLY)).changed(
                rows=shard.count,
                since_last=len(self._tracker.touched(shard, Since.LAST)),
                since_baseline=len(self._tracker.touched(shard, Since.BASELINE)),
            )
            for shard in self._shards
        )

    def take(self, intent: Intent, state: SavedState) -> Captured:
        """The snapshot of this moment. The intent says how the agent is to store each table."""
        since = Since.BASELINE if intent.kind is Kind.DIFFERENTIAL else Since.LAST
        taken = []
        for index, shard in enumerate(self._shards):
            touched = self._tracker.touched(shard, since)
            whole = intent.kind is Kind.FULL or touched.whole
            taken.append(_copy(index, shard, None if whole else touched.ids(), intent.precision(shard.table)))
        return _captured(taken, state.to_tree())

    def take_rows(
        self, step: int, chosen: Mapping[str, NDArray[np.int64] | None], state: RankState | None = None
    ) -> Captured:
        """The snapshot of the chosen rows (None: all), by table, and of no other state but this writer's own, if given.

        They are stored exactly.
        """
        taken = [_copy(index, shard, chosen[shard.table], EXACTLY) for index, shard in enumerate(self._shards)]
        return _captured(taken, rows_tree(step) if state is None else state.to_tree())


def _copy(index: int, shard: Shard, ids: NDArray[np.int64] | None, stored: Stored) -> tuple[TableCopy, TableSlice]:
    copy = TableCopy(
        index=index,
        columns=shard.spec.columns,
        tensors=shard.arrays,
        start=shard.first,
        stop=shard.stop,
        ids=ids,
        origin=shard.first,
    )
    return copy, TableCodecs.of(shard.spec, stored).slice(shard.first, shard.stop, whole=ids is None)


def _captured(taken: Sequence[tuple[TableCopy, TableSlice]], tree: Mapping[str, Any]) -> Captured:
    encoded = encode_tree(tree, host=True)
    tensors = (HostTensor(np.frombuffer(encoded.skeleton, dtype=np.uint8)), *encoded.tensors)
    return Captured(
        copies=tuple(copy for copy, _ in taken),
        slices=tuple(part for _, part in taken),
        tensors=tensors,
        tensor_specs=tuple((tensor.dtype, tensor.shape) for tensor in tensors),
    )
