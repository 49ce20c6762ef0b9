"""Which rows of a table to save first: the bookkeeping of CPR's policies, in the trainer's memory.

| policy | holds | on the table's device, per row |
|---|---|---|
| SCAR | the values that were last saved | the row's weights again |
| MFU | how often the row was used since | 4 bytes |
| SSU | a sorted list of at most r of the rows, and an eighth as many waiting to be sorted in | 4.5 · r bytes |

A use is a lookup that trains: it is read from the gradient that the optimizer uses, like the tracker's marks. A sparse
gradient names a row once per lookup; one that was summed before (coalesced, dense) names it once per step.

A snapshot is ``begin``, then ``committed`` or ``failed``. What happens in between is kept separately, so that nothing
the snapshot does not hold is forgotten, and nothing at all if it fails.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from holdfast.checkpoint.training.tables import Table
from holdfast.errors import ConfigurationError
from holdfast.policy.priority import MFU, SCAR, SSU, Priority

_PIECE_ROWS = 1 << 18  # rows that are compared at a time
_QUEUE_SHARE = 8
_QUEUE_LEAST = 256


class Selector(ABC):
    """Chooses among the rows ``[start, stop)`` of a table. ``limit`` is how many at a time, at most."""

    sees_gradients = True

    def __init__(self, table: Table, start: int, stop: int, limit: int) -> None:
        self._table = table
        self._start = start
        self._stop = stop
        self._limit = limit

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """What it holds between saves."""

    def see(self, gradient: Tensor) -> None:  # noqa: B027 - not everyone wants to know
        """The optimizer uses this gradient."""

    @abstractmethod
    def choose(self) -> Tensor:
        """The rows to save now: their ids, ascending, int64, on the table's device."""

    @abstractmethod
    def begin(self, ids: Tensor | None) -> None:
        """A snapshot of these rows (None: all that changed) is taken now."""

    @abstractmethod
    def committed(self) -> None:
        """The snapshot is committed: its rows start anew, with what happened to them since."""

    @abstractmethod
    def failed(self) -> None:
        """It is not: its rows stay what they were."""

    @abstractmethod
    def forget(self, start: int, stop: int) -> None:
        """The rows ``[start, stop)`` are again as they were saved."""

    @property
    def _rows(self) -> int:
        return self._stop - self._start

    def _local(self, start: int, stop: int) -> slice:
        low, high = max(start, self._start), min(stop, self._stop)
        return slice(low - self._start, max(low, high) - self._start)


def selector(policy: Priority, table: Table, start: int, stop: int) -> Selector:
    """What a policy needs for the rows ``[start, stop)`` of a table."""
    limit = policy.rows(stop - start)
    match policy:
        case SCAR():
            return ScarSelector(table, start, stop, limit)
        case MFU():
            return MfuSelector(table, start, stop, limit)
        case SSU(period=period, seed=seed):
            return SsuSelector(table, start, stop, limit, period=period, seed=seed)
    raise ConfigurationError(f"unsupported priority policy {policy!r}; use SCAR, MFU or SSU")


class MfuSelector(Selector):
    """A counter per row; at a commit the count that was saved is taken off, not what was counted since."""

    def __init__(self, table: Table, start: int, stop: int, limit: int) -> None:
        super().__init__(table, start, stop, limit)
        device = table.parameter.device
        # One more than there are rows: there is counted what is none of ours, because to leave it out would take a sync
        self._counts = torch.zeros(self._rows + 1, dtype=torch.int32, device=device)
        self._one = torch.ones(1, dtype=torch.int32, device=device)
        self._pending: tuple[Tensor | None, Tensor] | None = None

    @property
    def memory_bytes(self) -> int:
        return self._counts.nbytes

    def see(self, gradient: Tensor) -> None:
        if gradient.is_sparse:
            ids = gradient._indices()[0]
            if self._rows < self._table.rows:
                ours = (ids >= self._start) & (ids < self._stop)
                ids = torch.where(ours, ids - self._start, self._rows)
            self._counts.index_add_(0, ids, self._one.expand(len(ids)))
        else:
            self._counts[:-1] += _used_rows(gradient)[self._start : self._stop]

    def choose(self) -> Tensor:
        return _largest(self._counts[:-1], self._limit) + self._start

    def begin(self, ids: Tensor | None) -> None:
        local = None if ids is None else ids - self._start
        self._pending = (local, self._counts.clone() if local is None else self._counts[local])

    def committed(self) -> None:
        if self._pending is not None:
            ids, saved = self._pending
            self._counts[slice(None) if ids is None else ids] -= saved
        self._pending = None

    def failed(self) -> None:
        self._pending = None

    def forget(self, start: int, stop: int) -> None:
        self._counts[self._local(start, stop)] = 0
        self._pending = None


class ScarSelector(Selector):
    """A copy of the weights as they were last saved. Rows are compared with it when they are chosen."""

    sees_gradients = False

    def __init__(self, table: Table, start: int, stop: int, limit: int) -> None:
        super().__init__(table, start, stop, limit)
        self._saved = self._now().clone()
        self._pending: tuple[Tensor, Tensor] | None = None

    @property
    def memory_bytes(self) -> int:
        return self._saved.nbytes

    def choose(self) -> Tensor:
        return _largest(self._changes(), self._limit) + self._start

    def begin(self, ids: Tensor | None) -> None:
        local = torch.nonzero(self._changes()).reshape(-1) if ids is None else ids - self._start
        self._pending = (local, self._now()[local])

    def committed(self) -> None:
        if self._pending is not None:
            ids, values = self._pending
            self._saved[ids] = values
        self._pending = None

    def failed(self) -> None:
        self._pending = None

    def forget(self, start: int, stop: int) -> None:
        rows = self._local(start, stop)
        self._saved[rows] = self._now()[rows]
        self._pending = None

    def _now(self) -> Tensor:
        return self._table.parameter.detach()[self._start : self._stop]

    def _changes(self) -> Tensor:
        """How far each row has moved."""
        pieces = zip(self._now().split(_PIECE_ROWS), self._saved.split(_PIECE_ROWS), strict=True)
        moved = [(now.float() - saved.float()).reshape(len(now), -1).norm(dim=1) for now, saved in pieces]
        return torch.cat(moved) if moved else torch.empty(0)


class SsuSelector(Selector):
    """A duplicate-free list. Samples wait in a queue, so that the list is not sorted, and nobody waits, at every step.

    The list overflows when the queue is sorted in; whoever is dropped then, listed before or new, chance decides.
    """

    def __init__(self, table: Table, start: int, stop: int, limit: int, *, period: int, seed: int) -> None:
        super().__init__(table, start, stop, limit)
        self._period = period
        self._random = np.random.default_rng([seed, zlib.crc32(table.name.encode())])
        self._dtype = torch.int32 if table.rows < 2**31 else torch.int64
        self._ids = self._none()
        self._pending = self._none()
        self._queue: list[Tensor] = []
        self._queued = 0
        self._queue_limit = max(_QUEUE_LEAST, limit // _QUEUE_SHARE)

    @property
    def memory_bytes(self) -> int:
        return self._ids.nbytes + self._pending.nbytes + sum(each.nbytes for each in self._queue)

    def see(self, gradient: Tensor) -> None:
        ids = gradient._indices()[0] if gradient.is_sparse else torch.nonzero(_used_rows(gradient)).reshape(-1)
        # From another first one each time: where samples look up several rows, none of their places is passed over.
        sampled = ids[int(self._random.integers(self._period)) :: self._period].to(self._dtype, copy=True)
        self._queue.append(sampled)
        self._queued += len(sampled)
        if self._queued >= self._queue_limit:
            self._sort_in()

    def choose(self) -> Tensor:
        self._sort_in()
        return self._ids.to(torch.int64)

    def begin(self, ids: Tensor | None) -> None:
        self._sort_in()
        self._ids, self._pending = self._none(), self._join(self._pending, self._ids)

    def committed(self) -> None:
        self._pending = self._none()

    def failed(self) -> None:
        self._ids, self._pending = self._join(self._pending, self._ids), self._none()

    def forget(self, start: int, stop: int) -> None:
        self._sort_in()
        self._ids, self._pending = (ids[(ids < start) | (ids >= stop)] for ids in (self._ids, self._pending))

    def _none(self) -> Tensor:
        return torch.empty(0, dtype=self._dtype, device=self._table.parameter.device)

    def _sort_in(self) -> None:
        if not self._queue:
            return
        new = torch.cat(self._queue)
        self._queue, self._queued = [], 0
        if self._rows < self._table.rows:
            new = new[(new >= self._start) & (new < self._stop)]
        self._ids = self._join(self._ids, new)

    def _join(self, *lists: Tensor) -> Tensor:
        """All of them once each; where that is too many, as many as may be, chosen by chance."""
        joined: Tensor = torch.cat(lists).unique()
        if len(joined) <= self._limit:
            return joined
        kept = self._random.choice(len(joined), self._limit, replace=False)
        return joined[torch.from_numpy(np.sort(kept)).to(joined.device)]


def _largest(values: Tensor, limit: int) -> Tensor:
    """Where the largest values are, ascending; none that is zero."""
    ids = torch.nonzero(values).reshape(-1)
    if len(ids) <= limit:
        return ids
    chosen = torch.topk(values[ids], limit, sorted=False).indices
    return ids[chosen.sort().values]


def _used_rows(gradient: Tensor) -> Tensor:
    """Which rows a dense gradient moves."""
    return (gradient != 0).reshape(len(gradient), -1).any(dim=1)
