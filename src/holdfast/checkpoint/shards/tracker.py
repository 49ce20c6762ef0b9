"""Which rows of the shards changed since when: marks come by ids, a set of bits for each group of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoint.shards.shard import Shard
from holdfast.checkpoint.track.array_sets import array_marks
from holdfast.checkpoint.track.row_sets import Marks, Touched
from holdfast.checkpoint.wire.state_digests import PieceDigest
from holdfast.errors import ConfigurationError
from holdfast.types import Kind, Since, TableSpec

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """The rows of a shard that a snapshot must hold; use it before the next begin or outcome of a save."""

    touched: Touched[NDArray[Any]]
    offset: int  # of the shard in its group
    count: int

    @property
    def whole(self) -> bool:
        """Whether these are all of them."""
        return self.touched.whole

    def __len__(self) -> int:
        return self.touched.count(self.offset, self.offset + self.count)

    def ids(self) -> Ids:
        """Their numbers within the shard, ascending."""
        ids = self.touched.ids(self.offset, self.offset + self.count)
        ids -= self.offset
        return ids


class ShardTracker:
    """The marks of one process's shards. A save is ``begin``, then ``committed`` or ``failed``."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = {shard.table: shard for shard in shards}
        self._offsets: dict[str, int] = {}  # of shards in their groups
        sizes: dict[str, int] = {}
        for shard in shards:
            self._offsets[shard.table] = sizes.get(shard.group, 0)
            sizes[shard.group] = self._offsets[shard.table] + shard.count
        self._marks: dict[str, Marks[NDArray[Any]]] = {group: array_marks(rows) for group, rows in sizes.items()}
        self._stored: dict[str, TableSpec] = {}  # in the last committed or restored checkpoint
        self._full = False
        for marks in self._marks.values():  # which compiles, or loads, what no update shall wait for
            marks.live.add(np.empty(0, dtype=np.int64))

    def stored(self, table: str) -> TableSpec | None:
        """A table's columns in the last committed or restored checkpoint."""
        return self._stored.get(table)

    def offset(self, table: str) -> int:
        """Where in its group a shard begins."""
        return self._offsets[table]

    def mark(self, group: str, rows: NDArray[Any]) -> None:
        """Rows of a group that changed: integers, in any order."""
        self._of(group).live.add(rows)

    def mark_all(self) -> None:
        """Every row of every shard."""
        for marks in self._marks.values():
            marks.live.add_all()

    def begin(self, kind: Kind) -> None:
        """A snapshot is taken now. Marks belong to checkpoints: a priority save leaves them to the next one."""
        if kind is Kind.PRIORITY:
            return
        for shard in self._shards.values():
            if self._stored.get(shard.table) != shard.spec:  # what was stored lacks columns
                self._marks[shard.group].live.add_all()
        for marks in self._marks.values():
            marks.begin()
        self._full = kind is Kind.FULL

    def touched(self, shard: Shard, since: Since) -> ShardRows:
        """The rows of a shard that a snapshot must hold."""
        touched = self._marks[shard.group].touched(since, whole=self._full)
        return ShardRows(touched=touched, offset=self._offsets[shard.table], count=shard.count)

    def committed(self, kind: Kind, state: Sequence[PieceDigest] = ()) -> None:
        """The snapshot's commit is confirmed: its rows are forgotten, or counted as changed since the baseline."""
        if kind is Kind.PRIORITY:
            return
        for marks in self._marks.values():
            marks.committed(full=kind is Kind.FULL)
        self._stored = {name: shard.spec for name, shard in self._shards.items()}
        self._full = False

    def failed(self, kind: Kind) -> None:
        """The snapshot was not committed, or this is unknown: its rows stay marked and go into the next one."""
        if kind is not Kind.PRIORITY:
            self._full = False

    def restored(self, specs: Iterable[TableSpec], above: Mapping[str, Ids | None]) -> None:
        """The shards are those of a checkpoint with these columns, which holds rows ``above`` its baseline, by shard.

        None: all rows.
        """
        for marks in self._marks.values():
            marks.forget()
        self._stored = {spec.name: spec for spec in specs}
        self._full = False
        for table, ids in above.items():
            base = self._marks[self._shards[table].group].base
            if ids is None:
                base.add_all()
            else:
                base.add(ids + self._offsets[table])

    def _of(self, group: str) -> Marks[NDArray[Any]]:
        marks = self._marks.get(group)
        if marks is None:
            raise ConfigurationError(f"unknown group {group!r}; the shards' groups are {', '.join(self._marks)}")
        return marks
