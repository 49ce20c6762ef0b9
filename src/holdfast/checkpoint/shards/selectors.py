"""Which rows of a shard to save first: the bookkeeping of CPR's policies for arrays.

``holdfast.checkpoint.track.selectors`` does the same for tensors, and tells what each policy keeps. Here uses come as
rows of a group: each of an update counts once. A snapshot is ``begin``, then ``committed`` or ``failed``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_PIECE_ROWS = 1 << 16  # rows that are compared at a time


class ShardSelector(ABC):
    """Chooses among the rows of a shard, at most ``limit`` at a time. Rows are places in the shard."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    @abstractmethod
    def choose(self) -> Ids:
        """The rows to save now, ascending."""

    @abstractmethod
    def begin(self, rows: Ids | None) -> None:
        """A snapshot of these rows (None: all that changed) is taken now."""

    @abstractmethod
    def committed(self) -> None:
        """The snapshot is committed: its rows start anew, with what happened to them since."""

    @abstractmethod
    def failed(self) -> None:
        """It is not: its rows stay what they were."""


class MfuSelector(ShardSelector):
    """A counter per row, which others raise; at a commit the count that was saved is taken off, and no more."""

    def __init__(self, counts: NDArray[np.int32], limit: int) -> None:
        super().__init__(limit)
        self._counts = counts
        self._pending: tuple[Ids | None, NDArray[np.int32]] | None = None

    def choose(self) -> Ids:
        return _largest(self._counts, self._limit)

    def begin(self, rows: Ids | None) -> None:
        self._pending = (rows, self._counts.copy() if rows is None else self._counts[rows])

    def committed(self) -> None:
        if self._pending is not None:
            rows, saved = self._pending
            self._counts[slice(None) if rows is None else rows] -= saved
        self._pending = None

    def failed(self) -> None:
        self._pending = None


class ScarSelector(ShardSelector):
    """A copy of the weights as they were last saved. Rows are compared with it when they are chosen."""

    def __init__(self, weights: NDArray[Any], limit: int) -> None:
        super().__init__(limit)
        self._now = weights
        self._saved = self._now.copy()
        self._pending: tuple[Ids, NDArray[Any]] | None = None

    def choose(self) -> Ids:
        return _largest(self._changes(), self._limit)

    def begin(self, rows: Ids | None) -> None:
        rows = np.flatnonzero(self._changes()) if rows is None else rows
        self._pending = (rows, self._now[rows])

    def committed(self) -> None:
        if self._pending is not None:
            rows, values = self._pending
            self._saved[rows] = values
        self._pending = None

    def failed(self) -> None:
        self._pending = None

    def _changes(self) -> NDArray[np.float32]:
        """How far each row has moved."""
        moved = np.empty(len(self._now), dtype=np.float32)
        for start in range(0, len(moved), _PIECE_ROWS):
            piece = slice(start, start + _PIECE_ROWS)
            change = self._now[piece].astype(np.float32) - self._saved[piece].astype(np.float32)
            moved[piece] = np.linalg.norm(change.reshape(len(change), -1), axis=1)
        return moved


class SsuSelector(ShardSelector):
    """A flag per row, which others raise; where there are too many, chance decides who is dropped.

    A byte for each row, where the paper has a list of at most r·N rows, of four bytes each: about as much, and nothing
    has to be sorted at an update.
    """

    def __init__(self, flags: NDArray[np.bool_], limit: int, random: np.random.Generator) -> None:
        super().__init__(limit)
        self._flags = flags
        self._random = random
        self._pending = np.empty(0, dtype=np.int64)

    def choose(self) -> Ids:
        found = np.flatnonzero(self._flags)
        if len(found) <= self._limit:
            return found
        return found[np.sort(self._random.choice(len(found), self._limit, replace=False))]

    def begin(self, rows: Ids | None) -> None:
        self._pending = np.flatnonzero(self._flags) if rows is None else rows
        self._flags[:] = False

    def committed(self) -> None:
        self._pending = np.empty(0, dtype=np.int64)

    def failed(self) -> None:
        self._flags[self._pending] = True
        self._pending = np.empty(0, dtype=np.int64)


def _largest(values: NDArray[Any], limit: int) -> Ids:
    """Where the largest values are, ascending; none that is zero."""
    found = np.flatnonzero(values)
    if len(found) <= limit:
        return found
    return np.sort(found[np.argpartition(values[found], -limit)[-limit:]])
