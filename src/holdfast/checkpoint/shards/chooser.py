"""Chooses what a priority save of shards holds: rows of the largest tables, and the smaller tables whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.shards.selectors import ShardSelector
from holdfast.checkpoint.shards.shard import Shard
from holdfast.checkpoint.shards.tracker import ShardTracker
from holdfast.checkpoint.shards.uses import GroupUses, uses_of
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.format.layout import row_bytes
from holdfast.policy.priority import Priority, largest
from holdfast.types import Kind

Ids = NDArray[np.int64]


class ShardChooser:
    """Knows, for every shard, which rows the newest save holds unchanged. An observer of saves, like the tracker."""

    def __init__(self, policy: Priority, shards: Sequence[Shard], tracker: ShardTracker) -> None:
        self._policy = policy
        self._shards = shards
        self._tracker = tracker
        self._uses: dict[str, GroupUses] = {}
        self._chosen: dict[str, Ids | None] = {}
        self._whole: set[str] = set()  # tables saved so, with their columns, since the last checkpoint
        self._pending: set[str] = set()

    @property
    def chosen(self) -> Mapping[str, Ids | None]:
        """What the priority save in progress holds, by table: places in the shard, ascending; None: all."""
        return self._chosen

    def start(self) -> None:
        """Training starts, or continues from what was loaded: everything is as saved."""
        # The size of whole tables counts, so that all writers choose rows of the same ones.
        names = largest({shard.table: shard.rows * row_bytes([shard.spec.weight]) for shard in self._shards})
        members: dict[str, list[tuple[Shard, int]]] = {}
        for shard in self._shards:
            members.setdefault(shard.group, []).append((shard, self._tracker.offset(shard.table)))
        self._uses = {group: uses_of(self._policy, own, names) for group, own in members.items()}
        self._whole, self._pending, self._chosen = set(), set(), {}

    def use(self, group: str, rows: NDArray[Any]) -> None:
        """These rows of a group were updated."""
        self._uses[group].use(rows)

    def begin(self, kind: Kind) -> None:
        """A snapshot is taken now: of the rows chosen at this moment or, for a checkpoint, of all."""
        rows_only = kind is Kind.PRIORITY
        self._chosen = {shard.table: self._choose(shard) for shard in self._shards} if rows_only else {}
        for table, each in self._selectors():
            each.begin(self._chosen.get(table))
        self._pending = {table for table, ids in self._chosen.items() if ids is None}

    def committed(self, kind: Kind, state: Sequence[PieceDigest] = ()) -> None:
        """The newest save holds these rows."""
        for _, each in self._selectors():
            each.committed()
        self._whole = self._whole | self._pending if kind is Kind.PRIORITY else set()
        self._chosen = {}

    def failed(self, kind: Kind) -> None:
        """The newest save is the one before."""
        for _, each in self._selectors():
            each.failed()
        self._chosen = {}

    def _selectors(self) -> list[tuple[str, ShardSelector]]:
        return [item for uses in self._uses.values() for item in uses.selectors.items()]

    def _choose(self, shard: Shard) -> Ids | None:
        """None also if the newest save lacks columns that rows need."""
        is_stored = shard.table in self._whole or self._tracker.stored(shard.table) == shard.spec
        found = self._uses[shard.group].selectors.get(shard.table)
        return found.choose() if found is not None and is_stored else None
